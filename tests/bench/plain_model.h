#pragma once

#include <vector>

#include "engine/base/thread.h"
#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"
#include "tests/bench/workloads.h"

namespace penstock::bench {

// The unpipelined rival: the same layers, run one after the other by plain autograd on a thread of its own.
//
// Threads:   Step() starts a thread with the given cores and as many intra-op threads, and waits for it.
class PlainModel {
 public:
  explicit PlainModel(const Workload& workload);

  // Clears gradients, runs the batch in `micro_batches` pieces forward and backward. Returns the seconds.
  double Step(const Workload& workload, int micro_batches, const std::vector<int>& cores);

 private:
  std::vector<NamedLayer> layers_;
  std::unique_ptr<Loss> loss_;
};

}  // namespace penstock::bench
