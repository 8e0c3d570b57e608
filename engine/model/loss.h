#pragma once

// Losses that the server computes, by name; what each takes stands in proto/penstock/v1/pipeline.proto, LossSpec.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
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

  // Whether it compares with a target. If not, rows count, and `target` is undefined.
  virtual bool needs_target() const { return true; }

  // The mean over the micro-batch, a scalar that carries a graph; 0 with a graph if nothing counts. May throw (RunTorch).
  virtual at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const = 0;

  // How many elements of a target count: labels other than ignore_index, or all elements. May throw (RunTorch): for a target
  // whose values no output can have.
  virtual int64_t Counted(const at::Tensor& target) const = 0;

  // What the target of an output with this signature looks like.
  virtual TensorSignature Target(const TensorSignature& output) const = 0;
};

// Fails: LOSS_UNKNOWN naming the loss and the known ones; SPEC_INVALID for its options (prefix spec.loss.options).
absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const LossSpec& spec);

// The position of the output that the loss is of. Where the outputs are not known, only positions are.
//
// Fails: FIELD_INVALID naming PREFIX.output, the outputs that there are, and what was given.
absl::StatusOr<int> LossOutput(const LossSpec& spec, const std::vector<TensorSignature>& outputs,
                               std::string_view prefix);

std::vector<std::string> LossNames();  // sorted

}  // namespace penstock
