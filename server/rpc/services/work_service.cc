#include "server/rpc/services/work_service.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/record_of.h"
#include "server/rpc/convert/work_convert.h"
#include "server/rpc/streams/receive_stream.h"

namespace penstock {
namespace {

// Whether the message's method changes state.
bool ChangesState(const google::protobuf::Message&) { return true; }
bool ChangesState(const v1::InferRequest&) { return false; }
bool ChangesState(const v1::EvaluateRequest&) { return false; }
bool ChangesState(const v1::ForwardRequest& request) { return request.mode() != v1::ForwardRequest::MODE_EVAL; }

// Decodes a request and hands it over.
absl::StatusOr<Accepted> Submit(const v1::InferRequest& request, ServedPipeline& pipeline, CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(InferCall infer, CallOf(request));
  return pipeline.Infer(std::move(context), std::move(infer));
}

absl::StatusOr<Accepted> Submit(const v1::EvaluateRequest& request, ServedPipeline& pipeline, CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(EvaluateCall evaluate, CallOf(request));
  return pipeline.Evaluate(std::move(context), std::move(evaluate));
}

absl::StatusOr<Accepted> Submit(const v1::ForwardRequest& request, ServedPipeline& pipeline, CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(ForwardCall forward, CallOf(request));
  if (ChangesState(request)) return pipeline.Forward(std::move(context), std::move(forward));
  return pipeline.Infer(std::move(context), {std::move(forward.inputs), std::move(forward.request)});
}

absl::StatusOr<Accepted> Submit(const v1::BackwardRequest& request, ServedPipeline& pipeline, CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(BackwardCall backward, CallOf(request));
  return pipeline.Backward(std::move(context), std::move(backward));
}

absl::StatusOr<Accepted> Submit(const v1::ForwardBackwardRequest& request, ServedPipeline& pipeline,
                                CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(ContributionCall contribution, CallOf(request));
  return pipeline.ForwardBackward(std::move(context), std::move(contribution));
}

absl::StatusOr<Accepted> Submit(const v1::OptimizerStepRequest& request, ServedPipeline& pipeline,
                                CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(StepCall step, CallOf(request));
  return pipeline.OptimizerStep(std::move(context), std::move(step));
}

absl::StatusOr<Accepted> Submit(const v1::TrainStepRequest& request, ServedPipeline& pipeline, CallContext context) {
  PENSTOCK_ASSIGN_OR_RETURN(TrainStepCall step, CallOf(request));
  return pipeline.TrainStep(std::move(context), std::move(step.contribution), std::move(step.step));
}

}  // namespace

WorkServiceImpl::WorkServiceImpl(const ServiceEnvironment& environment)
    : environment_(environment),
      uploads_(std::make_shared<TensorUploads>(environment.handles, environment.timers, environment.clock)) {}

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
  if (!request.request_id().empty()) {
    work.context.payload_digest = PayloadDigest(request);
    work.context.recorded_digest = RecordedDigest(request, work.context.payload_digest);
    work.context.record = RecordOf(request);
  }
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
        [order = order_, id, after, waiting = std::weak_ptr<AnsweredCall>(call)] {
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

template <typename Response, typename Call>
void WorkServiceImpl::ReplyWhenSettled(const Call& call, const Accepted& accepted, const ReplyPlan& plan) {
  // Without a request id nobody can ask for these results again.
  const bool cancel_with_call = call->request().request_id().empty();
  WhenSettled(environment_, call, accepted, plan, cancel_with_call,
              [call, id = accepted.request_id](const Results& results) {
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
}

template <typename Response, typename Call>
void WorkServiceImpl::Run(const Call& call) {
  absl::StatusOr<Work> begun = Begin(call);
  if (!begun.ok()) return call->Fail(begun.status());
  const auto work = std::make_shared<Work>(*std::move(begun));  // one for all copies of what follows
  InOrder(call, *work, [this, call, work] {
    // The context goes on with the call, and with it the caller's place.
    const absl::StatusOr<Accepted> accepted = Submit(call->request(), *work->pipeline, std::move(work->context));
    work->context = {};  // before the caller hears of a failure
    if (!accepted.ok()) return call->Fail(accepted.status());
    accepted->WhenDurable([this, call, work, accepted = *accepted](const absl::Status& durable) {
      if (!durable.ok()) return call->Fail(durable);
      ReplyWhenSettled<Response>(call, accepted, work->plan);
    });
    if (!accepted->request_id.empty()) {
      order_->Accepted({call->caller(), work->pipeline->name(), accepted->request_id});
    }
  });
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* WorkServiceImpl::Serve(const char* method, grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<Request, Response>(
      gate_.Of(method), context, request, response, kWorkMessageBytes,
      [this](const auto& call) { Run<Response>(call); }, environment_.memory);
}

template <typename Request, typename Response>
absl::Status WorkServiceImpl::ServeStreamed(const char* method, WorkStream& stream, uint64_t tag, int field,
                                            const Pieces& message) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto call,
                            (stream.BeginRequest<Request, Response>(gate_.Of(method), tag, field, message)));
  if (call == nullptr) return absl::OkStatus();
  const absl::Status handled = Guarded("the request", [&] { Run<Response>(call); });
  if (!handled.ok()) call->Fail(handled);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* WorkServiceImpl::Infer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return Serve<v1::InferRequest, v1::InferResponse>("Infer", context, request, response);
}

grpc::ServerUnaryReactor* WorkServiceImpl::Evaluate(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::EvaluateRequest, v1::EvaluateResponse>("Evaluate", context, request, response);
}

grpc::ServerUnaryReactor* WorkServiceImpl::Forward(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::ForwardRequest, v1::ForwardResponse>("Forward", context, request, response);
}

grpc::ServerUnaryReactor* WorkServiceImpl::Backward(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::BackwardRequest, v1::BackwardResponse>("Backward", context, request, response);
}

grpc::ServerUnaryReactor* WorkServiceImpl::ForwardBackward(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return Serve<v1::ForwardBackwardRequest, v1::ForwardBackwardResponse>("ForwardBackward", context, request, response);
}

grpc::ServerUnaryReactor* WorkServiceImpl::OptimizerStep(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::OptimizerStepRequest, v1::OptimizerStepResponse>("OptimizerStep", context, request, response);
}

grpc::ServerUnaryReactor* WorkServiceImpl::TrainStep(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return Serve<v1::TrainStepRequest, v1::TrainStepResponse>("TrainStep", context, request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkServiceImpl::StreamWork(
    grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<WorkStream>(
      &streams_, gate_.Of("StreamWork"), environment_, context,
      WorkStream::Handler{.request = [this](WorkStream& on, uint64_t tag, int field,
                                            const Pieces& message) { return TakeStreamed(on, tag, field, message); },
                          .uploads = uploads_,
                          .put_gate = &handle_gate_.Of("PutTensors")});
  stream->Begin();
  return stream.get();
}

// An answer stands in the field of its request.
absl::Status WorkServiceImpl::TakeStreamed(WorkStream& stream, uint64_t tag, int field, const Pieces& message) {
  using Fields = v1::StreamWorkRequest;
  switch (field) {
    case Fields::kInferFieldNumber:
      return ServeStreamed<v1::InferRequest, v1::InferResponse>("Infer", stream, tag, field, message);
    case Fields::kEvaluateFieldNumber:
      return ServeStreamed<v1::EvaluateRequest, v1::EvaluateResponse>("Evaluate", stream, tag, field, message);
    case Fields::kForwardFieldNumber:
      return ServeStreamed<v1::ForwardRequest, v1::ForwardResponse>("Forward", stream, tag, field, message);
    case Fields::kBackwardFieldNumber:
      return ServeStreamed<v1::BackwardRequest, v1::BackwardResponse>("Backward", stream, tag, field, message);
    case Fields::kForwardBackwardFieldNumber:
      return ServeStreamed<v1::ForwardBackwardRequest, v1::ForwardBackwardResponse>("ForwardBackward", stream, tag,
                                                                                    field, message);
    case Fields::kOptimizerStepFieldNumber:
      return ServeStreamed<v1::OptimizerStepRequest, v1::OptimizerStepResponse>("OptimizerStep", stream, tag, field,
                                                                                message);
    case Fields::kTrainStepFieldNumber:
      return ServeStreamed<v1::TrainStepRequest, v1::TrainStepResponse>("TrainStep", stream, tag, field, message);
    default:
      return OutOfPlace("must hold one of the messages", absl::StrCat("field ", field));
  }
}

}  // namespace penstock
