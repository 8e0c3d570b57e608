#pragma once

// Losses that the server computes, by name: cross_entropy and mean_squared_error.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// A mean over counted elements. The pipeline weights each micro-batch's mean by its share of the step's count.
//
// Threads:   immutable; any thread.
class Loss {
 public:
  virtual ~Loss() = default;

  // The mean over the micro-batch, a scalar that carries a graph; 0 with a graph if nothing counts. May throw (RunTorch).
  // cross_entropy: logits [rows, ..., classes] and int64 labels [rows, ...]; mean_squared_error: equal shapes.
  virtual at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const = 0;

  // How many elements of a target count: labels other than ignore_index; all elements for mean_squared_error.
  virtual int64_t Counted(const at::Tensor& target) const = 0;

  // What the target of an output with this signature looks like.
  virtual TensorSignature Target(const TensorSignature& output) const = 0;
};

// Fails: LOSS_UNKNOWN naming the loss and the known ones; SPEC_INVALID for its options (prefix spec.loss.options).
absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const LossSpec& spec);

std::vector<std::string> LossNames();  // sorted

}  // namespace penstock
