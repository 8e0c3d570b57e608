#include "engine/model/loss.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

[[noreturn]] void ThrowTargetError(const std::string& field, const std::string& problem, const std::string& value) {
  ThrowStatus(
      Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE", absl::StrCat(field, ": ", problem, ", got ", value))
          .With("field", field)
          .With("value", value));
}

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

void CheckTarget(const at::Tensor& target, at::ScalarType type, at::IntArrayRef shape) {
  if (target.scalar_type() != type) {
    ThrowTargetError("target.type", absl::StrCat("must be ", c10::toString(type)), c10::toString(target.scalar_type()));
  }
  if (target.sizes() != shape) {
    ThrowTargetError("target.shape", absl::StrCat("must be ", ShapeText(shape)), ShapeText(target.sizes()));
  }
}

// Option: ignore_index (-100), the label that does not count.
class CrossEntropy : public Loss {
 public:
  explicit CrossEntropy(int64_t ignore_index) : ignore_index_(ignore_index) {}

  at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const override {
    if (output.dim() < 2) ThrowTargetError("output.shape", "must be rows by classes", ShapeText(output.sizes()));
    CheckTarget(target, at::kLong, output.sizes().slice(0, output.dim() - 1));
    const int64_t classes = output.size(-1);
    CheckLabels(target, classes);
    const bool counts = Counted(target) > 0;  // the mean over nothing is NaN, the sum is 0
    return at::cross_entropy_loss(output.reshape({-1, classes}), target.reshape({-1}), /*weight=*/{},
                                  counts ? at::Reduction::Mean : at::Reduction::Sum, ignore_index_);
  }

  int64_t Counted(const at::Tensor& target) const override { return target.ne(ignore_index_).sum().item<int64_t>(); }

  TensorSignature Target(const TensorSignature& output) const override {
    std::vector<int64_t> shape = output.shape;
    if (!shape.empty()) shape.pop_back();
    return {"target", DataType::kInt64, std::move(shape)};
  }

 private:
  void CheckLabels(const at::Tensor& target, int64_t classes) const {
    if (target.numel() == 0) return;
    const auto [least, most] = at::aminmax(target);
    if (least.item<int64_t>() >= 0 && most.item<int64_t>() < classes) return;
    // Only labels that don't count may lie outside.
    const at::Tensor wrong =
        target.masked_select(target.ne(ignore_index_).logical_and(target.lt(0).logical_or(target.ge(classes))));
    if (wrong.numel() == 0) return;
    ThrowTargetError("target", absl::StrCat("labels must lie in [0, ", classes - 1, "] or equal ", ignore_index_),
                     absl::StrCat(wrong[0].item<int64_t>()));
  }

  const int64_t ignore_index_;
};

class MeanSquaredError : public Loss {
 public:
  at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const override {
    // Under autocast an output is narrower than its signature says, and so than its target.
    const bool narrowed = target.scalar_type() == at::kFloat && at::isReducedFloatingType(output.scalar_type());
    const at::Tensor wide = narrowed ? output.to(at::kFloat) : output;
    CheckTarget(target, wide.scalar_type(), wide.sizes());
    return at::mse_loss(wide, target, wide.numel() > 0 ? at::Reduction::Mean : at::Reduction::Sum);
  }

  int64_t Counted(const at::Tensor& target) const override { return target.numel(); }

  TensorSignature Target(const TensorSignature& output) const override { return {"target", output.type, output.shape}; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const LossSpec& spec) {
  OptionReader reader(spec.options, "spec.loss.options");
  if (spec.name == "cross_entropy") {
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    const int64_t ignore_index = reader.Int("ignore_index", -100, -kLimit, kLimit);
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    return std::make_unique<CrossEntropy>(ignore_index);
  }
  if (spec.name == "mean_squared_error") {
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    return std::make_unique<MeanSquaredError>();
  }
  return Error(absl::StatusCode::kInvalidArgument, "LOSS_UNKNOWN",
               absl::StrCat("spec.loss.name: is not known; known are ", absl::StrJoin(LossNames(), ", "), ", got ",
                            Shortened(spec.name)))
      .With("field", "spec.loss.name")
      .With("value", Shortened(spec.name));
}

std::vector<std::string> LossNames() { return {"cross_entropy", "mean_squared_error"}; }

}  // namespace penstock
