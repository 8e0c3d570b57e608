#pragma once

// Runs one layer with its skips: what stages, the profiler and the plain reference all do.

#include <map>
#include <optional>
#include <vector>

#include "engine/model/layer_registry.h"

namespace penstock {

// The skip values that are on their way in one pass over one micro-batch: stashed, and not yet popped.
//
// Threads:   one at a time.
class SkipTracker {
 public:
  void Put(const SkipName& name, Value value) { values_[name] = std::move(value); }
  // Takes a value out; nothing if it is not there.
  std::optional<Value> Take(const SkipName& name);
  bool empty() const { return values_.empty(); }

 private:
  std::map<SkipName, Value> values_;
};

// Loads what the layer pops, runs it, and saves what it has stashed. A tuple becomes one argument if the model says so;
// a list that a layer returns is one argument of the next, and comes and goes spread (Batch::Spread). In a graph, the
// layer's outputs and stashes are made fit for a cut behind it: run_layer.cc says how.
//
// Fails:     throws (RunTorch) what the layer throws; FAILED_PRECONDITION / SKIP_INVALID "'A' must be popped but have
//            not", "'A', 'B' must be stashed but have not"; WRONG_TYPE "expected Tensor, but got ..." for one-argument
//            tuples.
Batch RunLayer(const NamedLayer& layer, const Batch& inputs, LayerContext context, SkipTracker& skips);

}  // namespace penstock
