#pragma once

// A model that brings its own layers, read from a file: what an exported program is to the rest of the engine.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer.h"
#include "engine/model/model_spec.h"

namespace penstock {

struct SourceOptions {
  bool shapes_only = false;          // parameters get types and shapes, but no memory
  bool deferred_batch_norm = false;  // running statistics follow mini-batches instead of micro-batches
};

// Layers by position, none of them built yet.
//
// Threads:   immutable; any thread.
class LayerSource {
 public:
  virtual ~LayerSource() = default;

  virtual int size() const = 0;  // layers
  virtual const std::string& name(int layer) const = 0;
  virtual const std::string& module(int layer) const = 0;  // the module it was cut from: layer1.0
  virtual const std::vector<TieSpec>& ties() const = 0;    // of parameters that several layers use
  // The file that it was read from: another process makes the same layers of it.
  virtual std::shared_ptr<const std::string> file() const = 0;
  // Fails:     SPEC_INVALID; HOST_MEMORY.
  virtual absl::StatusOr<std::unique_ptr<Layer>> Build(int layer, const SourceOptions& options) const = 0;
};

}  // namespace penstock
