#pragma once

// Losses that the server computes, by name; what each takes stands in proto/penstock/v1/pipeline.proto, LossSpec.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// A target, or its weights, where its values are looked at and where the output is. Nobody has to wait for a device where
// they are looked at on the host.
struct LossTensor {
  LossTensor() = default;
  LossTensor(const at::Tensor& tensor) : seen(tensor), here(tensor) {}  // NOLINT: both places are one
  LossTensor(at::Tensor seen, at::Tensor here) : seen(std::move(seen)), here(std::move(here)) {}

  at::Tensor seen;
  at::Tensor here;
};

// A weighted mean over the elements of a target. The pipeline weights each micro-batch's mean by its share of what
// counts in the step.
//
// Model:     an element weighs 1, or what the weight of its class and its own are together; one whose label is ignored
//            weighs nothing. `weights` are those of a target that CheckWeights has let through; undefined: all weigh 1.
// Threads:   immutable; any thread.
class Loss {
 public:
  virtual ~Loss() = default;

  // Whether it compares with a target. If not, rows count, and `target` is undefined.
  virtual bool needs_target() const { return true; }
  // Whether elements that count may weigh otherwise than 1 by themselves.
  virtual bool weighs() const { return false; }

  // The mean over the micro-batch, a scalar with a graph; 0 with a graph if nothing counts. May throw (RunTorch).
  at::Tensor Mean(const at::Tensor& output, const LossTensor& target, const LossTensor& weights) const;

  // The sum of what the elements weigh: without weights, the number of labels other than ignore_index, or of all
  // elements. May throw (RunTorch): for a target whose values no output can have.
  double Counted(const at::Tensor& target, const at::Tensor& weights) const;

  // What the target of an output with this signature looks like.
  virtual TensorSignature Target(const TensorSignature& output) const = 0;
  // Fails: SPEC_INVALID naming an option that does not go with such an output.
  virtual absl::Status CheckOutput(const TensorSignature& /*output*/) const { return absl::OkStatus(); }
  // Throws (RunTorch) for a target with values that no output with this signature can have; null: it is not known.
  virtual void CheckValues(const at::Tensor& /*target*/, const TensorSignature* /*output*/) const {}

 private:
  // The losses of the elements under an at::Reduction: kNone in the target's shape, 0 where nothing counts. Weights of
  // classes are in them, those of elements are not.
  virtual at::Tensor Losses(const at::Tensor& output, const LossTensor& target, int64_t reduction) const = 0;
  // As Counted; `weights` are in the target's shape, if they are defined.
  virtual double CountedOf(const at::Tensor& target, const at::Tensor& weights) const = 0;
};

// Weights of a target's elements are numbers, finite and not negative, in the target's first dimensions: [rows], or
// more of them, each of the target's size or 1; behind the first.
// Fails: TENSOR_SIGNATURE naming weights.type or weights.shape; FIELD_INVALID naming weights and the first wrong one.
absl::Status CheckWeights(const at::Tensor& weights, const at::Tensor& target);

// Fails: LOSS_UNKNOWN naming the loss and the known ones; SPEC_INVALID for its options (prefix spec.loss.options).
absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const LossSpec& spec);

// The position of the output that the loss is of. Where the outputs are not known, only positions are.
//
// Fails: FIELD_INVALID naming PREFIX.output, the outputs that there are, and what was given.
absl::StatusOr<int> LossOutput(const LossSpec& spec, const std::vector<TensorSignature>& outputs,
                               std::string_view prefix);

std::vector<std::string> LossNames();  // sorted

}  // namespace penstock
