#include "engine/model/metric.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

int64_t Count(const at::Tensor& flags) { return flags.sum().item<int64_t>(); }

// Of cross_entropy: whether the label is among the K classes with the highest scores.
class TopAccuracy : public EvaluationMetric {
 public:
  TopAccuracy(int64_t k, const LossSpec& loss, std::string name) : k_(k), name_(std::move(name)) {
    OptionReader reader(loss.options, "loss.options");  // MakeLoss has checked them
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    ignore_index_ = reader.Int("ignore_index", -100, -kLimit, kLimit);
    classes_last_ = reader.Int("class_dimension", -1, -1, 1) == -1;
  }

  MetricSum Sum(const at::Tensor& output, const at::Tensor& target) const override {
    const at::Tensor scores = classes_last_ ? output : output.movedim(1, -1);
    const at::Tensor counted = target.ne(ignore_index_);
    return {static_cast<double>(Count(Hits(scores, target).logical_and(counted))), Count(counted)};
  }

 private:
  at::Tensor Hits(const at::Tensor& scores, const at::Tensor& target) const {
    if (k_ == 1) return scores.argmax(-1).eq(target);
    if (k_ > scores.size(-1)) {
      ThrowStatus(
          InvalidField("metrics", absl::StrCat("can't look at more than the ", scores.size(-1), " classes"), name_));
    }
    return std::get<1>(scores.topk(k_, -1)).eq(target.unsqueeze(-1)).any(-1);
  }

  const int64_t k_;
  const std::string name_;
  int64_t ignore_index_ = 0;
  bool classes_last_ = true;
};

// Of binary_cross_entropy: whether output and target lie on the same side of a half.
class BinaryAccuracy : public EvaluationMetric {
 public:
  explicit BinaryAccuracy(const LossSpec& loss) {
    OptionReader reader(loss.options, "loss.options");
    threshold_ = reader.Bool("logits", true) ? 0 : 0.5;
  }

  MetricSum Sum(const at::Tensor& output, const at::Tensor& target) const override {
    return {static_cast<double>(Count(output.gt(threshold_).eq(target.gt(0.5)))), target.numel()};
  }

 private:
  double threshold_ = 0;
};

class MeanAbsoluteError : public EvaluationMetric {
 public:
  MetricSum Sum(const at::Tensor& output, const at::Tensor& target) const override {
    return {output.to(at::kDouble).sub(target.to(at::kDouble)).abs().sum().item<double>(), target.numel()};
  }
};

// The K of top_K_accuracy.
std::optional<int64_t> TopOf(const std::string& name) {
  absl::string_view number = name;
  int64_t k = 0;
  if (!absl::ConsumePrefix(&number, "top_") || !absl::ConsumeSuffix(&number, "_accuracy")) return std::nullopt;
  if (!absl::SimpleAtoi(number, &k) || k < 1 || absl::StrCat(k) != number) return std::nullopt;
  return k;
}

std::unique_ptr<EvaluationMetric> MakeMetric(const std::string& name, const LossSpec& loss) {
  if (loss.name == "cross_entropy") {
    const std::optional<int64_t> k = name == "accuracy" ? 1 : TopOf(name);
    return k.has_value() ? std::make_unique<TopAccuracy>(*k, loss, name) : nullptr;
  }
  if (loss.name == "binary_cross_entropy" && name == "accuracy") return std::make_unique<BinaryAccuracy>(loss);
  if (loss.name == "mean_squared_error" && name == "mean_absolute_error") return std::make_unique<MeanAbsoluteError>();
  return nullptr;
}

std::string_view MetricsOf(const LossSpec& loss) {
  if (loss.name == "cross_entropy") return "accuracy, top_K_accuracy";
  if (loss.name == "binary_cross_entropy") return "accuracy";
  if (loss.name == "mean_squared_error") return "mean_absolute_error";
  return "none";
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<EvaluationMetric>>> MakeMetrics(const std::vector<std::string>& names,
                                                                           const LossSpec& loss) {
  std::vector<std::unique_ptr<EvaluationMetric>> metrics;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string field = absl::StrCat("metrics[", i, "]");
    if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i)) {
      return InvalidField(field, "is asked for twice", Shortened(names[i]));
    }
    metrics.push_back(MakeMetric(names[i], loss));
    if (metrics.back() != nullptr) continue;
    const std::string_view known = MetricsOf(loss);
    return InvalidField(field,
                        absl::StrCat("is no metric of the loss ", loss.name, ", which has ",
                                     absl::string_view(known.data(), known.size())),
                        Shortened(names[i]));
  }
  return metrics;
}

}  // namespace penstock
