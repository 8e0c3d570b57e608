#pragma once

// Metrics that an evaluation computes beside the loss, by name; what each is stands in proto/penstock/v1/work.proto,
// EvaluateRequest.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"

namespace penstock {

// What a micro-batch adds to a metric: the sum over the elements that count, and their number.
struct MetricSum {
  double sum = 0;
  int64_t counted = 0;
};

// A mean over counted elements.
//
// Threads:   immutable; any thread.
class EvaluationMetric {
 public:
  virtual ~EvaluationMetric() = default;

  // `output` and `target` are those that the loss has just been computed of. May throw (RunTorch).
  virtual MetricSum Sum(const at::Tensor& output, const at::Tensor& target) const = 0;
};

// The metrics of a loss that is valid. Labels that the loss ignores are not counted.
//
// Fails:     FIELD_INVALID naming metrics[i], the metrics that the loss has, and what was asked for.
absl::StatusOr<std::vector<std::unique_ptr<EvaluationMetric>>> MakeMetrics(const std::vector<std::string>& names,
                                                                           const LossSpec& loss);

}  // namespace penstock
