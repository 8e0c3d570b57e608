#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/tensor/batch.h"

namespace penstock {

// Refuses layers that change in place what their stage was given: a recomputation would start from something else, and
// the tensors may be another's.
//
// Model:     the tensors that were given, those inside of containers too, and how often each had been changed by then.
// Threads:   one at a time.
// Fails:     by throwing a Status (RunTorch): WRONG_TYPE that names the layer.
// Example:   guard.Note(inputs);
//            ... a layer runs ...
//            guard.CheckUnchanged(layer_name);
class InPlaceGuard {
 public:
  void Note(const Batch& batch);

  // Throws if the layer that just ran has changed one of them.
  void CheckUnchanged(const std::string& layer) const;

  // Throws the layer's error: LAYER_FAILED and INTERNAL with the layer's name before it, others as they are. LibTorch
  // itself forbids changing what asks for a gradient.
  [[noreturn]] void ThrowFailure(const std::string& layer, const absl::Status& status) const;

 private:
  std::vector<std::pair<at::Tensor, int64_t>> given_;
};

}  // namespace penstock
