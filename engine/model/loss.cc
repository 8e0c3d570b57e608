#include "engine/model/loss.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
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

absl::Status ClassWeightsError(const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("spec.loss.class_weights: ", problem, ", got ", value))
      .With("field", "spec.loss.class_weights")
      .With("value", value);
}

void CheckTarget(const at::Tensor& target, at::ScalarType type, at::IntArrayRef shape) {
  if (target.scalar_type() != type) {
    ThrowTargetError("target.type", absl::StrCat("must be ", c10::toString(type)), c10::toString(target.scalar_type()));
  }
  if (target.sizes() != shape) {
    ThrowTargetError("target.shape", absl::StrCat("must be ", ShapeText(shape)), ShapeText(target.sizes()));
  }
}

// In the shape of the target, whose first dimensions they have.
at::Tensor Expanded(const at::Tensor& weights, const at::Tensor& target) {
  std::vector<int64_t> shape = weights.sizes().vec();
  shape.resize(target.dim(), 1);
  return weights.reshape(shape).expand(target.sizes());
}

double Sum(const at::Tensor& values) { return values.sum(at::kDouble).item<double>(); }

// Without weights every element counts.
double AllOrWeights(const at::Tensor& target, const at::Tensor& weights) {
  return weights.defined() ? Sum(weights) : static_cast<double>(target.numel());
}

// Options: ignore_index (-100), a label that does not count; class_dimension, -1 (the last) or 1; label_smoothing (0).
class CrossEntropy : public Loss {
 public:
  struct Settings {
    int64_t ignore_index = -100;
    bool classes_last = true;
    double label_smoothing = 0;
    std::vector<double> class_weights = {};
  };
  explicit CrossEntropy(Settings settings) : settings_(std::move(settings)) {
    if (weighs()) class_weights_ = at::tensor(settings_.class_weights, at::kDouble);
  }

  bool weighs() const override { return !settings_.class_weights.empty(); }

  TensorSignature Target(const TensorSignature& output) const override {
    return {"target", DataType::kInt64, WithoutClasses(output.shape)};
  }

  absl::Status CheckOutput(const TensorSignature& output) const override {
    if (output.shape.size() < 2) return absl::OkStatus();  // told by Losses
    return CheckClassWeights(ClassesOf(output));
  }

  void CheckValues(const at::Tensor& target, const TensorSignature* output) const override {
    if (output == nullptr || output->shape.size() < 2 || ClassesOf(*output) < 0) return;
    CheckLabels(target, ClassesOf(*output));
  }

 private:
  at::Tensor Losses(const at::Tensor& output, const LossTensor& target, int64_t reduction) const override {
    if (output.dim() < 2) ThrowTargetError("output.shape", "must be rows by classes", ShapeText(output.sizes()));
    CheckTarget(target.here, at::kLong, WithoutClasses(output.sizes().vec()));
    const int64_t classes = output.size(settings_.classes_last ? -1 : 1);
    CheckLabels(target.seen, classes);
    at::Tensor weights;
    if (weighs()) {
      if (absl::Status fits = CheckClassWeights(classes); !fits.ok()) ThrowStatus(std::move(fits));
      weights = ClassWeightsLike(output);
    }
    const auto loss = [&](const at::Tensor& scores, const at::Tensor& labels) {
      return at::cross_entropy_loss(scores, labels, weights, reduction, settings_.ignore_index,
                                    settings_.label_smoothing);
    };
    if (!settings_.classes_last) return loss(output, target.here);
    const at::Tensor losses = loss(output.reshape({-1, classes}), target.here.reshape({-1}));
    return reduction == at::Reduction::None ? losses.reshape(target.here.sizes()) : losses;
  }

  double CountedOf(const at::Tensor& target, const at::Tensor& weights) const override {
    const at::Tensor counts = target.ne(settings_.ignore_index);
    if (!weighs() && !weights.defined()) return static_cast<double>(counts.sum().item<int64_t>());
    at::Tensor all = counts.to(at::kDouble);
    if (weighs()) {
      CheckTarget(target, at::kLong, target.sizes());
      CheckLabels(target, class_weights_.numel());
      const at::Tensor labels = target.masked_fill(counts.logical_not(), 0);
      all = all.mul(class_weights_.to(target.device()).index_select(0, labels.reshape({-1})).reshape(target.sizes()));
    }
    return Sum(weights.defined() ? all.mul(weights) : all);
  }

  std::vector<int64_t> WithoutClasses(std::vector<int64_t> shape) const {
    const bool last = settings_.classes_last || shape.size() < 2;
    if (!shape.empty()) shape.erase(last ? shape.end() - 1 : shape.begin() + 1);
    return shape;
  }

  int64_t ClassesOf(const TensorSignature& output) const {
    return settings_.classes_last ? output.shape.back() : output.shape[1];
  }

  absl::Status CheckClassWeights(int64_t classes) const {
    const auto count = static_cast<int64_t>(settings_.class_weights.size());
    if (count == 0 || classes < 0 || count == classes) return absl::OkStatus();
    return ClassWeightsError(absl::StrCat("must be ", classes, " numbers, one for each class"), absl::StrCat(count));
  }

  void CheckLabels(const at::Tensor& target, int64_t classes) const {
    if (target.numel() == 0) return;
    const auto [least, most] = at::aminmax(target);
    if (least.item<int64_t>() >= 0 && most.item<int64_t>() < classes) return;
    // Only labels that don't count may lie outside.
    const at::Tensor wrong = target.masked_select(
        target.ne(settings_.ignore_index).logical_and(target.lt(0).logical_or(target.ge(classes))));
    if (wrong.numel() == 0) return;
    ThrowTargetError("target",
                     absl::StrCat("labels must lie in [0, ", classes - 1, "] or equal ", settings_.ignore_index),
                     absl::StrCat(wrong[0].item<int64_t>()));
  }

  // Placed once: the host waits for a copy of memory that is not pinned.
  at::Tensor ClassWeightsLike(const at::Tensor& output) const {
    absl::MutexLock lock(&mu_);
    for (const at::Tensor& placed : placed_weights_) {
      if (placed.device() == output.device() && placed.scalar_type() == output.scalar_type()) return placed;
    }
    return placed_weights_.emplace_back(class_weights_.to(output.options()));
  }

  const Settings settings_;
  at::Tensor class_weights_;  // on the host, as doubles; undefined without
  mutable absl::Mutex mu_;
  mutable std::vector<at::Tensor> placed_weights_ ABSL_GUARDED_BY(mu_);  // by device and type
};

// Under autocast an output is narrower than its signature says, and so than its target.
at::Tensor AsWideAs(const at::Tensor& target, const at::Tensor& output) {
  const bool narrowed = target.scalar_type() == at::kFloat && at::isReducedFloatingType(output.scalar_type());
  return narrowed ? output.to(at::kFloat) : output;
}

class MeanSquaredError : public Loss {
 public:
  TensorSignature Target(const TensorSignature& output) const override { return {"target", output.type, output.shape}; }

 private:
  at::Tensor Losses(const at::Tensor& output, const LossTensor& target, int64_t reduction) const override {
    const at::Tensor wide = AsWideAs(target.here, output);
    CheckTarget(target.here, wide.scalar_type(), wide.sizes());
    return at::mse_loss(wide, target.here, reduction);
  }

  double CountedOf(const at::Tensor& target, const at::Tensor& weights) const override {
    return AllOrWeights(target, weights);
  }
};

// The first element that is less than 0 or more than 1; NaN is neither. Undefined if there is none.
at::Tensor OutsideUnit(const at::Tensor& values) {
  const at::Tensor outside = values.masked_select(values.lt(0).logical_or(values.gt(1)));
  return outside.numel() == 0 ? at::Tensor() : outside[0];
}

// Options: logits (true); without, the output is a probability. pos_weight (1), of logits: what the loss of a 1 weighs.
class BinaryCrossEntropy : public Loss {
 public:
  BinaryCrossEntropy(bool logits, double pos_weight) : logits_(logits), pos_weight_(pos_weight) {}

  TensorSignature Target(const TensorSignature& output) const override { return {"target", output.type, output.shape}; }

  void CheckValues(const at::Tensor& target, const TensorSignature* /*output*/) const override {
    const at::Tensor outside = OutsideUnit(target);
    if (!outside.defined()) return;
    ThrowTargetError("target", "must lie in [0, 1]", absl::StrCat(outside.item<double>()));
  }

 private:
  at::Tensor Losses(const at::Tensor& output, const LossTensor& target, int64_t reduction) const override {
    const at::Tensor wide = AsWideAs(target.here, output);
    CheckTarget(target.here, wide.scalar_type(), wide.sizes());
    if (logits_) {
      const at::Tensor pos_weight = pos_weight_ == 1 ? at::Tensor() : at::full({}, pos_weight_, wide.options());
      return at::binary_cross_entropy_with_logits(wide, target.here, {}, pos_weight, reduction);
    }
    const at::Tensor detached = wide.detach();
    if (const at::Tensor outside = OutsideUnit(detached); outside.defined()) {
      ThrowTargetError("output", "must be a probability, or the option logits be true",
                       absl::StrCat(outside.item<double>()));
    }
    // LibTorch ends the call on NaN; here a step that is not finite is answered as such.
    if (detached.isnan().any().item<bool>()) return reduction == at::Reduction::None ? wide : wide.mean();
    return at::binary_cross_entropy(wide, target.here, {}, reduction);
  }

  double CountedOf(const at::Tensor& target, const at::Tensor& weights) const override {
    return AllOrWeights(target, weights);
  }

  const bool logits_;
  const double pos_weight_;
};

// The mean that the model computes itself, from labels among its inputs.
class ScalarOutput : public Loss {
 public:
  bool needs_target() const override { return false; }

  TensorSignature Target(const TensorSignature& /*output*/) const override { return {}; }

 private:
  at::Tensor Losses(const at::Tensor& output, const LossTensor& /*target*/, int64_t /*reduction*/) const override {
    if (output.numel() != 1 || output.dim() > 1 || !at::isFloatingType(output.scalar_type())) {
      ThrowTargetError("output", "must be one floating number, for it is the loss",
                       absl::StrCat(c10::toString(output.scalar_type()), " ", ShapeText(output.sizes())));
    }
    return output.dim() == 0 ? output : output.reshape({});
  }

  double CountedOf(const at::Tensor& /*target*/, const at::Tensor& /*weights*/) const override { return 0; }
};

absl::StatusOr<std::unique_ptr<Loss>> MakeCrossEntropy(const LossSpec& spec, OptionReader& reader) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  CrossEntropy::Settings settings;
  settings.ignore_index = reader.Int("ignore_index", settings.ignore_index, -kLimit, kLimit);
  const int64_t dimension = reader.Int("class_dimension", -1, -1, 1);
  if (dimension == 0) reader.Refuse("class_dimension", "must be -1, the last, or 1");
  settings.classes_last = dimension == -1;
  settings.label_smoothing = reader.Double("label_smoothing", 0, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  settings.class_weights = spec.class_weights;
  for (const double weight : settings.class_weights) {
    // A smoothed label has a loss in every class: one that weighs nothing would have a loss that counts in no mean.
    const bool above = weight > 0 || (weight == 0 && settings.label_smoothing == 0);
    if (above && std::isfinite(weight)) continue;
    return ClassWeightsError(settings.label_smoothing == 0 ? "must be finite and not negative"
                                                           : "must be finite and, with label_smoothing, above 0",
                             absl::StrCat(weight));
  }
  return std::make_unique<CrossEntropy>(std::move(settings));
}

}  // namespace

at::Tensor Loss::Mean(const at::Tensor& output, const LossTensor& target, const LossTensor& weights) const {
  if (needs_target() && !at::isFloatingType(output.scalar_type())) {
    ThrowTargetError("output.type", "must be a floating type, for a loss compares it with a target",
                     c10::toString(output.scalar_type()));
  }
  if (!weights.here.defined()) {
    // The mean over nothing is NaN, the sum is 0.
    return Losses(output, target, CountedOf(target.seen, {}) > 0 ? at::Reduction::Mean : at::Reduction::Sum);
  }
  const at::Tensor losses = Losses(output, target, at::Reduction::None);
  const double counted = CountedOf(target.seen, Expanded(weights.seen, target.seen));
  const at::Tensor sum = losses.mul(Expanded(weights.here, target.here).to(losses.scalar_type())).sum();
  return counted > 0 ? sum.div(counted) : sum;
}

double Loss::Counted(const at::Tensor& target, const at::Tensor& weights) const {
  CheckValues(target, nullptr);
  return CountedOf(target, weights.defined() ? Expanded(weights, target) : at::Tensor());
}

absl::Status CheckWeights(const at::Tensor& weights, const at::Tensor& target) {
  return RunTorch([&] {
    if (at::isComplexType(weights.scalar_type())) {
      ThrowTargetError("weights.type", "must be a number", c10::toString(weights.scalar_type()));
    }
    bool fits = weights.dim() >= 1 && weights.dim() <= target.dim() && weights.size(0) == target.size(0);
    for (int64_t d = 1; fits && d < weights.dim(); ++d)
      fits = weights.size(d) == target.size(d) || weights.size(d) == 1;
    if (!fits) {
      ThrowTargetError("weights.shape",
                       absl::StrCat("must have the first dimensions of the target, ", ShapeText(target.sizes()),
                                    ", or 1 behind the rows"),
                       ShapeText(weights.sizes()));
    }
    const at::Tensor wide = weights.to(at::kDouble);
    const at::Tensor wrong = wide.masked_select(wide.isfinite().logical_and(wide.ge(0)).logical_not());
    if (wrong.numel() == 0) return;
    ThrowStatus(InvalidField("weights", "must be finite and not negative", absl::StrCat(wrong[0].item<double>())));
  });
}

absl::StatusOr<std::unique_ptr<Loss>> MakeLoss(const LossSpec& spec) {
  OptionReader reader(spec.options, "spec.loss.options");
  if (spec.name == "cross_entropy") return MakeCrossEntropy(spec, reader);
  if (!spec.class_weights.empty()) {
    return ClassWeightsError("are for cross_entropy", absl::StrCat(spec.class_weights.size(), " numbers"));
  }
  if (spec.name == "binary_cross_entropy") {
    const bool logits = reader.Bool("logits", true);
    const double pos_weight = reader.Double("pos_weight", 1, 0, 1e6);
    if (!logits && pos_weight != 1) reader.Refuse("pos_weight", "is for logits");
    PENSTOCK_RETURN_IF_ERROR(reader.Finish());
    return std::make_unique<BinaryCrossEntropy>(logits, pos_weight);
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
