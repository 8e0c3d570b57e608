#include "server/rpc/convert/work_convert.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/field_values.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

// Each number of micro-batches has action lists of its own, which are built for the call.
constexpr int kMaxMicroBatchesOfACall = 4'096;
constexpr int kMaxMetrics = 64;
constexpr absl::Duration kMaxAccumulationLease = absl::Hours(24);

// A count that a request may leave unset.
template <typename Number>
absl::StatusOr<std::optional<Number>> Positive(bool present, Number value, Number most, const char* field) {
  if (!present) return std::optional<Number>();
  if (value < 1 || value > most) {
    return InvalidField(field, absl::StrCat("must lie in [1, ", most, "]"), absl::StrCat(value));
  }
  return std::optional<Number>(value);
}

// A rate or norm that a request may leave unset.
absl::StatusOr<std::optional<double>> NotNegative(bool present, double value, const char* field) {
  if (!present) return std::optional<double>();
  if (!std::isfinite(value) || value < 0) {
    return InvalidField(field, "must be finite and at least 0", absl::StrCat(value));
  }
  return std::optional<double>(value);
}

constexpr double kMaxTotal = int64_t{1} << 53;  // rows or elements of a step: whole in a double, which weighs by it

absl::StatusOr<std::optional<double>> TotalElements(const v1::ForwardBackwardRequest& request) {
  if (!request.has_total_elements()) return std::optional<double>();
  const double total = request.total_elements();
  if (total > 0 && total <= kMaxTotal) return std::optional<double>(total);
  return InvalidField("total_elements", "must be above 0 and at most 2^53", absl::StrCat(total));
}

template <typename Request>
absl::StatusOr<std::optional<int>> MicroBatches(const Request& request) {
  if (request.has_micro_batches() && request.micro_batches() < 1) {
    return InvalidField("micro_batches", "number of micro-batches must be a positive integer",
                        absl::StrCat(request.micro_batches()));
  }
  return Positive<int>(request.has_micro_batches(), request.micro_batches(), kMaxMicroBatchesOfACall, "micro_batches");
}

template <typename Request>
absl::StatusOr<StepRequest> Step(const Request& request) {
  StepRequest step;
  PENSTOCK_ASSIGN_OR_RETURN(step.learning_rate,
                            NotNegative(request.has_learning_rate(), request.learning_rate(), "learning_rate"));
  PENSTOCK_ASSIGN_OR_RETURN(step.clip_norm, NotNegative(request.has_clip_norm(), request.clip_norm(), "clip_norm"));
  return step;
}

// The mini-batch that ForwardBackward, TrainStep and Evaluate share.
template <typename Request>
absl::StatusOr<ContributionCall> Contribution(const Request& request) {
  ContributionCall call;
  PENSTOCK_ASSIGN_OR_RETURN(call.request.micro_batches, MicroBatches(request));
  if constexpr (requires { request.outputs(); }) {
    PENSTOCK_ASSIGN_OR_RETURN(call.request.outputs, CheckedOutputs(request.outputs()));
  }
  if (request.has_loss()) {
    PENSTOCK_ASSIGN_OR_RETURN(call.request.loss, FromProto(request.loss(), "loss"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(call.inputs, FromProto(request.inputs(), "inputs"));
  if (request.has_target()) {
    PENSTOCK_ASSIGN_OR_RETURN(call.target, FromProto(request.target(), "target"));
  }
  if (request.has_weights()) {
    PENSTOCK_ASSIGN_OR_RETURN(call.weights, FromProto(request.weights(), "weights"));
  }
  return call;
}

template <typename Request>
absl::StatusOr<absl::Duration> AccumulationLease(const Request& request) {
  return CheckedDuration(request.accumulation_lease(), kMaxAccumulationLease, "accumulation_lease");
}

}  // namespace

absl::StatusOr<InferCall> CallOf(const v1::InferRequest& request) {
  InferCall infer;
  PENSTOCK_ASSIGN_OR_RETURN(infer.request.micro_batches, MicroBatches(request));
  PENSTOCK_ASSIGN_OR_RETURN(infer.request.outputs, CheckedOutputs(request.outputs()));
  PENSTOCK_ASSIGN_OR_RETURN(infer.inputs, FromProto(request.inputs(), "inputs"));
  infer.request.priority = request.priority();
  infer.reply_bytes = request.reply().inline_bytes();
  return infer;
}

absl::StatusOr<EvaluateCall> CallOf(const v1::EvaluateRequest& request) {
  if (request.metrics_size() > kMaxMetrics) {
    return InvalidField("metrics", absl::StrCat("must have at most ", kMaxMetrics, " entries"),
                        absl::StrCat(request.metrics_size()));
  }
  EvaluateCall evaluate;
  PENSTOCK_ASSIGN_OR_RETURN(evaluate.batch, Contribution(request));
  evaluate.metrics.assign(request.metrics().begin(), request.metrics().end());
  evaluate.priority = request.priority();
  return evaluate;
}

absl::StatusOr<ForwardCall> CallOf(const v1::ForwardRequest& request) {
  if (!v1::ForwardRequest::Mode_IsValid(request.mode())) {
    return InvalidField("mode", "must be a known mode", absl::StrCat(static_cast<int>(request.mode())));
  }
  ForwardCall forward;
  PENSTOCK_ASSIGN_OR_RETURN(forward.request.micro_batches, MicroBatches(request));
  PENSTOCK_ASSIGN_OR_RETURN(forward.request.outputs, CheckedOutputs(request.outputs()));
  PENSTOCK_ASSIGN_OR_RETURN(forward.inputs, FromProto(request.inputs(), "inputs"));
  forward.request.input_gradients = request.input_gradients();
  forward.reply_bytes = request.reply().inline_bytes();
  if (request.mode() == v1::ForwardRequest::MODE_EVAL && forward.request.input_gradients) {
    return InvalidField("input_gradients", "needs mode TRAIN", "EVAL");
  }
  return forward;
}

absl::StatusOr<BackwardCall> SettingsOf(const v1::BackwardRequest& request) {
  BackwardCall backward;
  backward.retain_graph = request.retain_graph();
  backward.input_gradients = request.input_gradients();
  PENSTOCK_ASSIGN_OR_RETURN(backward.accumulation_lease, AccumulationLease(request));
  return backward;
}

absl::StatusOr<BackwardCall> CallOf(const v1::BackwardRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(HandleName graph, HandleName::Parse(request.graph(), "graph"));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<InputSource> gradients, FromProto(request.gradients(), "gradients"));
  PENSTOCK_ASSIGN_OR_RETURN(BackwardCall backward, SettingsOf(request));
  backward.graph = std::move(graph);
  backward.gradients = std::move(gradients);
  return backward;
}

absl::StatusOr<ContributionCall> CallOf(const v1::ForwardBackwardRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::optional<int64_t> rows,
      Positive<int64_t>(request.has_total_rows(), request.total_rows(), static_cast<int64_t>(kMaxTotal), "total_rows"));
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<double> elements, TotalElements(request));
  PENSTOCK_ASSIGN_OR_RETURN(ContributionCall contribution, Contribution(request));
  contribution.request.total_rows = rows;
  contribution.request.total_elements = elements;
  PENSTOCK_ASSIGN_OR_RETURN(contribution.accumulation_lease, AccumulationLease(request));
  return contribution;
}

absl::StatusOr<StepCall> CallOf(const v1::OptimizerStepRequest& request) {
  if (!v1::OptimizerStepRequest::Action_IsValid(request.action())) {
    return InvalidField("action", "must be APPLY or DISCARD", absl::StrCat(static_cast<int>(request.action())));
  }
  StepCall step;
  step.discard = request.action() == v1::OptimizerStepRequest::ACTION_DISCARD;
  step.force = request.force();
  if (step.force && !step.discard) return InvalidField("force", "goes with DISCARD", "true");
  PENSTOCK_ASSIGN_OR_RETURN(step.request, Step(request));
  return step;
}

absl::StatusOr<TrainStepCall> CallOf(const v1::TrainStepRequest& request) {
  TrainStepCall call;
  PENSTOCK_ASSIGN_OR_RETURN(call.step, Step(request));
  PENSTOCK_ASSIGN_OR_RETURN(call.contribution, Contribution(request));
  return call;
}

}  // namespace penstock
