#include "server/rpc/services/work_service.h"

#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

// Each number of micro-batches has action lists of its own, which are built for the call.
constexpr int kMaxMicroBatchesOfACall = 4'096;
constexpr int kMaxMetrics = 64;

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

// Whether the message's method changes state.
constexpr absl::Duration kMaxAccumulationLease = absl::Hours(24);

bool ChangesState(const google::protobuf::Message&) { return true; }
bool ChangesState(const v1::InferRequest&) { return false; }
bool ChangesState(const v1::EvaluateRequest&) { return false; }
bool ChangesState(const v1::ForwardRequest& request) { return request.mode() != v1::ForwardRequest::MODE_EVAL; }

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

template <typename Call>
absl::StatusOr<WorkServiceImpl::Work> WorkServiceImpl::Begin(const Call& call) {
  auto& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), ChangesState(request)));
  call->set_request_id(request.request_id());
  Work work;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, ParsePipelineName(request.pipeline(), "pipeline"));
  PENSTOCK_ASSIGN_OR_RETURN(work.plan, ReplyPlan::FromProto(request.reply(), *environment_.handles));
  PENSTOCK_ASSIGN_OR_RETURN(work.pipeline, LivePipeline(environment_, call->identity(), name));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), name));
  call->Keep(ticket);
  work.context.place = std::move(ticket);
  work.context.caller = call->caller();
  work.context.session = call->session();
  work.context.request_id = request.request_id();
  work.context.observer = call->trace();
  if (call->trace() != nullptr) call->trace()->Set("penstock.pipeline", name);
  // Before the tensors are taken out of the message, which has more bytes than they.
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation inputs,
                            TakeMemory(environment_.memory, {MemoryClass::kInputs, call->caller(), name},
                                       static_cast<int64_t>(request.ByteSizeLong())));
  work.context.inputs_held = std::make_shared<MemoryReservation>(std::move(inputs));
  if (!request.request_id().empty()) work.context.payload_digest = PayloadDigest(request);
  work.context.lease = work.plan.lease;
  work.context.work_timeout = work.plan.work_timeout;
  if constexpr (requires { request.expected_state(); }) {
    work.context.expected_state = request.expected_state();
  }
  return work;
}

template <typename Call>
void WorkServiceImpl::InOrder(const Call& call, const Work& work, const std::function<void()>& go) {
  if constexpr (requires { call->request().after_request_id(); }) {
    const std::string& after = call->request().after_request_id();
    if (after.empty()) return go();
    if (absl::Status checked = CheckRequestId(after, true, "after_request_id"); !checked.ok())
      return call->Fail(checked);
    const CallOrder::WaitId id = order_->Add({call->caller(), work.pipeline->name(), after}, go);
    absl::Cleanup forget = [&] { order_->Remove(id); };  // a call that fails here must not run later
    // The predecessor is looked for after Add(): one that is accepted in between runs `go` itself.
    if (work.pipeline->HasAccepted(call->caller(), after)) {
      std::move(forget).Cancel();
      if (order_->Remove(id)) go();
      return;
    }
    // A timer that runs late holds no call.
    const TimerQueue::TimerId timer = environment_.timers->Add(
        environment_.clock->NowNanos() + absl::ToInt64Nanoseconds(work.plan.wait_for),
        [order = order_, id, after, waiting = std::weak_ptr<UnaryCallBase>(call)] {
          const auto late = waiting.lock();
          if (!order->Remove(id) || late == nullptr) return;
          late->Fail(Error(absl::StatusCode::kDeadlineExceeded, "PREDECESSOR_PENDING",
                           "after_request_id: that call was not accepted in reply.wait_for, got " + after)
                         .With("field", "after_request_id")
                         .With("value", after));
        });
    // The timer goes with the call's answer, which lets go of this action, or with its cancel.
    const std::shared_ptr<void> held(nullptr, [timers = environment_.timers, timer](void*) { timers->Remove(timer); });
    call->OnCancelled([order = order_, id, held] { order->Remove(id); });
    std::move(forget).Cancel();
  } else {
    go();
  }
}

template <typename Request, typename Response, typename Submit>
grpc::ServerUnaryReactor* WorkServiceImpl::Serve(const char* method, grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                                 Submit submit) {
  return ServeUnary<Request, Response>(
      gate_.Of(method), context, request, response, kWorkMessageBytes,
      [this, &submit](const auto& call) {
        absl::StatusOr<Work> begun = Begin(call);
        if (!begun.ok()) return call->Fail(begun.status());
        const auto work = std::make_shared<Work>(*std::move(begun));  // one for all copies of what follows
        InOrder(call, *work, [this, call, submit, work] {
          // The context goes on with the call, and with it the caller's place.
          const absl::StatusOr<Accepted> accepted = submit(call, *work);
          work->context.place.reset();  // before the caller hears of a failure
          work->context.inputs_held.reset();
          if (!accepted.ok()) return call->Fail(accepted.status());
          // Without a request id nobody can ask for these results again.
          const bool cancel_with_call = call->request().request_id().empty();
          WhenSettled(environment_, call, *accepted, work->plan, cancel_with_call,
                      [call, id = accepted->request_id](const Results& results) {
                        Response answer;
                        answer.set_request_id(id);
                        if constexpr (requires { answer.mutable_outcome(); }) {
                          if (results.outcome.has_handle()) *answer.mutable_outcome() = results.outcome;
                        }
                        if constexpr (requires { answer.mutable_outputs(); }) {
                          if (results.outputs.has_handle()) *answer.mutable_outputs() = results.outputs;
                        }
                        if constexpr (requires { answer.mutable_input_gradients(); }) {
                          if (results.outputs.has_handle()) *answer.mutable_input_gradients() = results.outputs;
                        }
                        if constexpr (requires { answer.mutable_graph(); }) {
                          if (results.graph.has_handle()) *answer.mutable_graph() = results.graph;
                        }
                        call->Reply(answer);
                      });
          if (!accepted->request_id.empty()) {
            order_->Accepted({call->caller(), work->pipeline->name(), accepted->request_id});
          }
        });
      },
      environment_.memory);
}

grpc::ServerUnaryReactor* WorkServiceImpl::Infer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return Serve<v1::InferRequest, v1::InferResponse>(
      "Infer", context, request, response, [](const auto& call, Work& work) -> absl::StatusOr<Accepted> {
        InferCall infer;
        PENSTOCK_ASSIGN_OR_RETURN(infer.request.micro_batches, MicroBatches(call->request()));
        PENSTOCK_ASSIGN_OR_RETURN(infer.request.outputs, CheckedOutputs(call->request().outputs()));
        PENSTOCK_ASSIGN_OR_RETURN(infer.inputs, FromProto(call->request().inputs(), "inputs"));
        infer.request.priority = call->request().priority();
        return work.pipeline->Infer(std::move(work.context), std::move(infer));
      });
}

grpc::ServerUnaryReactor* WorkServiceImpl::Evaluate(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::EvaluateRequest, v1::EvaluateResponse>(
      "Evaluate", context, request, response, [](const auto& call, const Work& work) -> absl::StatusOr<Accepted> {
        const v1::EvaluateRequest& message = call->request();
        if (message.metrics_size() > kMaxMetrics) {
          return InvalidField("metrics", absl::StrCat("must have at most ", kMaxMetrics, " entries"),
                              absl::StrCat(message.metrics_size()));
        }
        EvaluateCall evaluate;
        PENSTOCK_ASSIGN_OR_RETURN(evaluate.batch, Contribution(message));
        evaluate.metrics.assign(message.metrics().begin(), message.metrics().end());
        evaluate.priority = message.priority();
        return work.pipeline->Evaluate(work.context, std::move(evaluate));
      });
}

grpc::ServerUnaryReactor* WorkServiceImpl::Forward(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::ForwardRequest, v1::ForwardResponse>(
      "Forward", context, request, response, [](const auto& call, Work& work) -> absl::StatusOr<Accepted> {
        const v1::ForwardRequest& message = call->request();
        const bool evaluate = message.mode() == v1::ForwardRequest::MODE_EVAL;
        if (!v1::ForwardRequest::Mode_IsValid(message.mode())) {
          return InvalidField("mode", "must be a known mode", absl::StrCat(static_cast<int>(message.mode())));
        }
        ForwardCall forward;
        PENSTOCK_ASSIGN_OR_RETURN(forward.request.micro_batches, MicroBatches(message));
        PENSTOCK_ASSIGN_OR_RETURN(forward.request.outputs, CheckedOutputs(message.outputs()));
        PENSTOCK_ASSIGN_OR_RETURN(forward.inputs, FromProto(message.inputs(), "inputs"));
        forward.request.input_gradients = message.input_gradients();
        if (evaluate && forward.request.input_gradients) {
          return InvalidField("input_gradients", "needs mode TRAIN", "EVAL");
        }
        if (!evaluate) return work.pipeline->Forward(std::move(work.context), std::move(forward));
        return work.pipeline->Infer(std::move(work.context), {std::move(forward.inputs), std::move(forward.request)});
      });
}

grpc::ServerUnaryReactor* WorkServiceImpl::Backward(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::BackwardRequest, v1::BackwardResponse>(
      "Backward", context, request, response, [](const auto& call, Work& work) -> absl::StatusOr<Accepted> {
        BackwardCall backward;
        PENSTOCK_ASSIGN_OR_RETURN(backward.graph, HandleName::Parse(call->request().graph(), "graph"));
        PENSTOCK_ASSIGN_OR_RETURN(backward.gradients, FromProto(call->request().gradients(), "gradients"));
        backward.retain_graph = call->request().retain_graph();
        backward.input_gradients = call->request().input_gradients();
        PENSTOCK_ASSIGN_OR_RETURN(backward.accumulation_lease, AccumulationLease(call->request()));
        return work.pipeline->Backward(std::move(work.context), std::move(backward));
      });
}

grpc::ServerUnaryReactor* WorkServiceImpl::ForwardBackward(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return Serve<v1::ForwardBackwardRequest, v1::ForwardBackwardResponse>(
      "ForwardBackward", context, request, response, [](const auto& call, Work& work) -> absl::StatusOr<Accepted> {
        const v1::ForwardBackwardRequest& message = call->request();
        PENSTOCK_ASSIGN_OR_RETURN(const std::optional<int64_t> rows,
                                  Positive<int64_t>(message.has_total_rows(), message.total_rows(),
                                                    static_cast<int64_t>(kMaxTotal), "total_rows"));
        PENSTOCK_ASSIGN_OR_RETURN(const std::optional<double> elements, TotalElements(message));
        PENSTOCK_ASSIGN_OR_RETURN(ContributionCall contribution, Contribution(message));
        contribution.request.total_rows = rows;
        contribution.request.total_elements = elements;
        PENSTOCK_ASSIGN_OR_RETURN(contribution.accumulation_lease, AccumulationLease(message));
        return work.pipeline->ForwardBackward(std::move(work.context), std::move(contribution));
      });
}

grpc::ServerUnaryReactor* WorkServiceImpl::OptimizerStep(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::OptimizerStepRequest, v1::OptimizerStepResponse>(
      "OptimizerStep", context, request, response, [](const auto& call, Work& work) -> absl::StatusOr<Accepted> {
        const v1::OptimizerStepRequest& message = call->request();
        if (!v1::OptimizerStepRequest::Action_IsValid(message.action())) {
          return InvalidField("action", "must be APPLY or DISCARD", absl::StrCat(static_cast<int>(message.action())));
        }
        StepCall step;
        step.discard = message.action() == v1::OptimizerStepRequest::ACTION_DISCARD;
        step.force = message.force();
        if (step.force && !step.discard) return InvalidField("force", "goes with DISCARD", "true");
        PENSTOCK_ASSIGN_OR_RETURN(step.request, Step(message));
        return work.pipeline->OptimizerStep(std::move(work.context), std::move(step));
      });
}

grpc::ServerUnaryReactor* WorkServiceImpl::TrainStep(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::TrainStepRequest, v1::TrainStepResponse>(
      "TrainStep", context, request, response, [](const auto& call, Work& work) -> absl::StatusOr<Accepted> {
        PENSTOCK_ASSIGN_OR_RETURN(StepRequest step, Step(call->request()));
        PENSTOCK_ASSIGN_OR_RETURN(ContributionCall contribution, Contribution(call->request()));
        return work.pipeline->TrainStep(std::move(work.context), std::move(contribution), std::move(step));
      });
}

}  // namespace penstock
