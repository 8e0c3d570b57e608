#include "engine/model/loss.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
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

void CheckTarget(const at::Tensor& target, at::ScalarType type, at::IntArrayRef shape) {
  if (target.scalar_type() != type) {
    ThrowTargetError("target.type", absl::StrCat("must be ", c10::toString(type)), c10::toString(target.scalar_type()));
  }
  if (target.sizes() != shape) {
    ThrowTargetError("target.shape", absl::StrCat("must be ", ShapeText(shape)), ShapeText(target.sizes()));
  }
}

// Options: ignore_index (-100), the label that does not count; class_dimension, -1 (the last) or 1.
class CrossEntropy : public Loss {
 public:
  CrossEntropy(int64_t ignore_index, bool classes_last) : ignore_index_(ignore_index), classes_last_(classes_last) {}

  at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const override {
    if (output.dim() < 2) ThrowTargetError("output.shape", "must be rows by classes", ShapeText(output.sizes()));
    CheckTarget(target, at::kLong, WithoutClasses(output.sizes().vec()));
    const int64_t classes = output.size(classes_last_ ? -1 : 1);
    CheckLabels(target, classes);
    // The mean over nothing is NaN, the sum is 0.
    const auto reduction = Counted(target) > 0 ? at::Reduction::Mean : at::Reduction::Sum;
    if (!classes_last_) return at::cross_entropy_loss(output, target, /*weight=*/{}, reduction, ignore_index_);
    return at::cross_entropy_loss(output.reshape({-1, classes}), target.reshape({-1}), /*weight=*/{}, reduction,
                                  ignore_index_);
  }

  int64_t Counted(const at::Tensor& target) const override { return target.ne(ignore_index_).sum().item<int64_t>(); }

  TensorSignature Target(const TensorSignature& output) const override {
    return {"target", DataType::kInt64, WithoutClasses(output.shape)};
  }

 private:
  std::vector<int64_t> WithoutClasses(std::vector<int64_t> shape) const {
    if (!shape.empty()) shape.erase(classes_last_ || shape.size() < 2 ? shape.end() - 1 : shape.begin() + 1);
    return shape;
  }

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
  const bool classes_last_;
};

// Under autocast an output is narrower than its signature says, and so than its target.
at::Tensor AsWideAs(const at::Tensor& target, const at::Tensor& output) {
  const bool narrowed = target.scalar_type() == at::kFloat && at::isReducedFloatingType(output.scalar_type());
  return narrowed ? output.to(at::kFloat) : output;
}

class MeanSquaredError : public Loss {
 public:
  at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor wide = AsWideAs(target, output);
    CheckTarget(target, wide.scalar_type(), wide.sizes());
    return at::mse_loss(wide, target, wide.numel() > 0 ? at::Reduction::Mean : at::Reduction::Sum);
  }

  int64_t Counted(const at::Tensor& target) const override { return target.numel(); }

  TensorSignature Target(const TensorSignature& output) const override { return {"target", output.type, output.shape}; }
};

// The first element that is less than 0 or more than 1; NaN is neither. Undefined if there is none.
at::Tensor OutsideUnit(const at::Tensor& values) {
  const at::Tensor outside = values.masked_select(values.lt(0).logical_or(values.gt(1)));
  return outside.numel() == 0 ? at::Tensor() : outside[0];
}

// Option: logits (true); without, the output is a probability.
class BinaryCrossEntropy : public Loss {
 public:
  explicit BinaryCrossEntropy(bool logits) : logits_(logits) {}

  at::Tensor Mean(const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor wide = AsWideAs(target, output);
    CheckTarget(target, wide.scalar_type(), wide.sizes());
    const auto reduction = wide.numel() > 0 ? at::Reduction::Mean : at::Reduction::Sum;
    if (logits_) return at::binary_cross_entropy_with_logits(wide, target, {}, {}, reduction);
    const at::Tensor detached = wide.detach();
    if (const at::Tensor outside = OutsideUnit(detached); outside.defined()) {
      ThrowTargetError("output", "must be a probability, or the option logits be true",
                       absl::StrCat(outside.item<double>()));
    }
    // LibTorch ends the call on NaN; here a step that is not finite is answered as such.
    if (detached.isnan().any().item<bool>()) return wide.mean();
    return at::binary_cross_entropy(wide, target, {}, reduction);
  }

  int64_t Counted(const at::Tensor& target) const override {
    if (const at::Tensor outside = OutsideUnit(target); outside.defined()) {
      ThrowTargetError("target", "must lie in [0, 1]", absl::StrCat(outside.item<double>()));
    }
    return target.numel();
  }

  TensorSignature Target(const TensorSignature& output) const override { return {"target", output.type, output.shape}; }

 private:
  const bool logits_;
};

// The mean that the model computes itself, from labels among its inputs.
class ScalarOutput : public Loss {
 public:
  bool needs_target() const override { return false; }

  at::Tensor Mean(const at::Tensor& output, const at::Tensor& /*target*/) const override {
    if (output.numel() != 1 || output.dim() > 1 || !at::isFloatingType(output.scalar_type())) {
      ThrowTargetError("output", "must be one floating number, for it is the loss",
                       absl::StrCat(c10::toString(output.scalar_type()), " ", ShapeText(output.sizes())));
    }
    return output.dim() == 0 ? output : output.reshape({});
  }

  int64_t Counted(const at::Tensor& /*target*/) const override { return 0; }

  TensorSignature Target(const TensorSignature& /*output*/) const override { return {}; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const LossSpec& spec) {
  OptionReader reader(spec.options, "spec.loss.options");
  if (spec.name == "cross_entropy") {
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    const int64_t ignore_index = reader.Int("ignore_index", -100, -kLimit, kLimit);
    const int64_t dimension = reader.Int("class_dimension", -1, -1, 1);
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    if (dimension == 0) {
      return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                   "spec.loss.options[class_dimension]: must be -1, the last, or 1, got 0")
          .With("field", "spec.loss.options[class_dimension]")
          .With("value", "0");
    }
    return std::make_unique<CrossEntropy>(ignore_index, dimension == -1);
  }
  if (spec.name == "binary_cross_entropy") {
    const bool logits = reader.Bool("logits", true);
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    return std::make_unique<BinaryCrossEntropy>(logits);
  }
  if (spec.name == "scalar_output") {
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    return std::make_unique<ScalarOutput>();
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

absl::StatusOr<int> LossOutput(const LossSpec& spec, const std::vector<TensorSignature>& outputs,
                               std::string_view prefix) {
  if (spec.output.empty()) {
    const auto is_tensor = [](const TensorSignature& output) { return !output.any; };
    const auto first = std::find_if(outputs.begin(), outputs.end(), is_tensor);
    return first == outputs.end() ? 0 : static_cast<int>(first - outputs.begin());
  }
  const std::string field = absl::StrCat(absl::string_view(prefix.data(), prefix.size()), ".output");
  std::vector<std::string> names;
  int position = -1;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name == spec.output) position = static_cast<int>(i);
    if (!outputs[i].any) names.push_back(outputs[i].name);
  }
  constexpr int kMaxOutputs = 1024;
  const int known = outputs.empty() ? kMaxOutputs : static_cast<int>(outputs.size());
  const bool is_known =
      position >= 0 || (absl::SimpleAtoi(spec.output, &position) && position >= 0 && position < known);
  if (is_known && (outputs.empty() || !outputs[position].any)) return position;
  const std::string problem = outputs.empty() ? "must be a position, for only a run can tell the outputs"
                                              : absl::StrCat("must be one of ", absl::StrJoin(names, ", "));
  return InvalidField(field, problem, Shortened(spec.output));
}

std::vector<std::string> LossNames() {
  return {"binary_cross_entropy", "cross_entropy", "mean_squared_error", "scalar_output"};
}

}  // namespace penstock
