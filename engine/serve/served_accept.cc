// Acceptance of calls by a ServedPipeline: what each method asks for, its checks, its results.
//
//   a call ──▶ Recorded? ──▶ Admit ──▶ prepare: pin, check ──▶ reserve handles ──▶ Recorded? Admit ──▶ queue ──▶ answer
//              (a retry)     (bounds,  (no lock held)                              (again: others
//                             order)                                                came meanwhile)

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/observe/metrics.h"
#include "engine/serve/served_pipeline.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

RejectReason RejectReasonOf(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == "QUEUE_FULL") return RejectReason::kQueueFull;
  if (reason == "HANDLE_BUDGET") return RejectReason::kMemory;
  if (reason == "GRAPH_LIMIT" || reason == "REQUEST_LOG_FULL" || reason == "CALLER_QUOTA") return RejectReason::kQuota;
  if (reason == "DRAINING") return RejectReason::kDraining;
  return RejectReason::kInvalid;
}

absl::Status CheckPositive(std::string_view field, std::optional<int64_t> value) {
  if (!value.has_value() || *value >= 1) return absl::OkStatus();
  return InvalidField(field, "must be at least 1", std::to_string(*value));
}

// The target; what stays says only that there is one, so that its tensor goes when the call lets go of its inputs.
std::optional<InputSource> TakeTarget(ContributionCall& call) {
  std::optional<InputSource> target = call.target;
  if (call.target.has_value()) call.target->source = at::Tensor();
  return target;
}

}  // namespace

// What the handles of a call know of it.
class ServedPipeline::Producer : public HandleProducer {
 public:
  Producer(std::weak_ptr<ServedPipeline> pipeline, CallPointer call)
      : pipeline_(std::move(pipeline)), call_(std::move(call)) {}

  CancelEffect RequestCancel() override {
    const auto pipeline = pipeline_.lock();
    return pipeline == nullptr ? CancelEffect::kNotCancellable : pipeline->Cancel(call_);
  }
  void Abandon(const HandleId&) override {
    if (const auto pipeline = pipeline_.lock()) pipeline->Abandon(call_);
  }

 private:
  const std::weak_ptr<ServedPipeline> pipeline_;
  const CallPointer call_;
};

// --- What each method asks for.

absl::Status ServedPipeline::PinInputs(Call& call, std::vector<InputSource> inputs, const std::string& field) const {
  PENSTOCK_ASSIGN_OR_RETURN(CallInputs pinned,
                            CallInputs::Make(options_.handles, call.context.caller, std::move(inputs), field));
  call.inputs.Append(std::move(pinned));
  return absl::OkStatus();
}

absl::StatusOr<Accepted> ServedPipeline::Infer(CallContext context, InferCall infer) {
  std::vector<InputSource> inputs = std::exchange(infer.inputs, {});
  const std::optional<int> micro_batches = infer.request.micro_batches;
  return Accept(std::make_shared<Call>(std::move(context), std::move(infer)),
                [&](Call& call) -> absl::StatusOr<Results> {
                  PENSTOCK_RETURN_IF_ERROR(CheckPositive("micro_batches", micro_batches));
                  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(inputs), "inputs"));
                  PENSTOCK_RETURN_IF_ERROR(runner_.CheckTensors(call));
                  call.queue_weight = micro_batches.value_or(pipeline_->plan().schedule.micro_batches);
                  return Results{.outputs = true, .output_bytes = runner_.ExpectedOutputBytes(call)};
                });
}

absl::StatusOr<Accepted> ServedPipeline::Forward(CallContext context, ForwardCall forward) {
  std::vector<InputSource> inputs = std::exchange(forward.inputs, {});
  const std::optional<int> micro_batches = forward.request.micro_batches;
  return Accept(std::make_shared<Call>(std::move(context), std::move(forward)),
                [&](Call& call) -> absl::StatusOr<Results> {
                  PENSTOCK_RETURN_IF_ERROR(CheckPositive("micro_batches", micro_batches));
                  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(inputs), "inputs"));
                  PENSTOCK_RETURN_IF_ERROR(runner_.CheckTensors(call));
                  call.queue_weight = micro_batches.value_or(pipeline_->plan().schedule.micro_batches);
                  return Results{.outputs = true, .graph = true, .output_bytes = runner_.ExpectedOutputBytes(call)};
                });
}

absl::StatusOr<Accepted> ServedPipeline::Backward(CallContext context, BackwardCall backward) {
  std::vector<InputSource> gradients = std::exchange(backward.gradients, {});
  const HandleName name = backward.graph;
  const bool input_gradients = backward.input_gradients;
  return Accept(std::make_shared<Call>(std::move(context), std::move(backward)),
                [&](Call& call) -> absl::StatusOr<Results> {
                  absl::StatusOr<HandlePin> graph = options_.handles->Pin(call.context.caller, name);
                  if (!graph.ok()) return WithValue(graph.status(), "field", "graph");
                  if (graph->kind() != HandleKind::kGraph) return WithValue(graph->graph().status(), "field", "graph");
                  if (name.pipeline != options_.name) {
                    return InvalidField("graph", "must be a graph of pipeline " + options_.name, ToString(name));
                  }
                  // One that was consumed or is stale is refused at once.
                  if (graph->settled()) PENSTOCK_RETURN_IF_ERROR(graph->graph().status());
                  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(gradients), "gradients"));
                  if (graph->settled() && call.inputs.ready()) {
                    PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Graph> kept, graph->graph());
                    PENSTOCK_ASSIGN_OR_RETURN(const NamedValues values, call.inputs.Take());
                    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors tensors, ToTensors(values));
                    PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckGradients(*kept, tensors));
                  }
                  call.graph_pin = call.inputs.AddPin(*std::move(graph));
                  return Results{.outcome = true, .outputs = input_gradients};
                });
}

absl::StatusOr<Accepted> ServedPipeline::ForwardBackward(CallContext context, ContributionCall contribution) {
  std::vector<InputSource> inputs = std::exchange(contribution.inputs, {});
  std::optional<InputSource> target = TakeTarget(contribution);
  return AcceptContribution(std::move(context), std::move(contribution), std::move(inputs), std::move(target));
}

absl::StatusOr<Accepted> ServedPipeline::TrainStep(CallContext context, ContributionCall contribution,
                                                   StepRequest step) {
  std::vector<InputSource> inputs = std::exchange(contribution.inputs, {});
  std::optional<InputSource> target = TakeTarget(contribution);
  return AcceptContribution(std::move(context), TrainStepCall{std::move(contribution), std::move(step)},
                            std::move(inputs), std::move(target));
}

absl::StatusOr<Accepted> ServedPipeline::AcceptContribution(CallContext context, Request request,
                                                            std::vector<InputSource> inputs,
                                                            std::optional<InputSource> target) {
  return Accept(std::make_shared<Call>(std::move(context), std::move(request)),
                [&](Call& call) -> absl::StatusOr<Results> {
                  const ContributionRequest& asked = ContributionOf(call.request)->request;
                  PENSTOCK_RETURN_IF_ERROR(CheckPositive("micro_batches", asked.micro_batches));
                  PENSTOCK_RETURN_IF_ERROR(CheckPositive("total_rows", asked.total_rows));
                  PENSTOCK_RETURN_IF_ERROR(CheckPositive("total_elements", asked.total_elements));
                  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(inputs), "inputs"));
                  if (target.has_value()) {
                    std::vector<InputSource> targets;
                    targets.push_back(*std::move(target));
                    PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(targets), "target"));
                  }
                  PENSTOCK_RETURN_IF_ERROR(runner_.CheckTensors(call));
                  call.queue_weight = asked.micro_batches.value_or(pipeline_->plan().schedule.micro_batches);
                  const bool keeps = !asked.outputs.empty();
                  return Results{
                      .outcome = true, .outputs = keeps, .output_bytes = keeps ? runner_.ExpectedOutputBytes(call) : 0};
                });
}

absl::StatusOr<Accepted> ServedPipeline::OptimizerStep(CallContext context, StepCall step) {
  return Accept(std::make_shared<Call>(std::move(context), std::move(step)),
                [](Call&) { return Results{.outcome = true}; });
}

void ServedPipeline::SaveCheckpoint(CallContext context, SaveCall save, StateCallback done) {
  AcceptState(std::make_shared<Call>(std::move(context), std::move(save)), std::move(done));
}

void ServedPipeline::CopyCheckpoint(CallContext context, CopyCall copy, StateCallback done) {
  AcceptState(std::make_shared<Call>(std::move(context), std::move(copy)), std::move(done));
}

void ServedPipeline::RestoreCheckpoint(CallContext context, std::string id, bool force, StateCallback done) {
  AcceptState(std::make_shared<Call>(std::move(context), RestoreCall{.id = std::move(id), .force = force}),
              std::move(done));
}

void ServedPipeline::DeleteCheckpoint(CallContext context, std::string id, StateCallback done) {
  AcceptState(std::make_shared<Call>(std::move(context), DeleteCall{.id = std::move(id)}), std::move(done));
}

void ServedPipeline::WriteParameters(CallContext context, WriteCall write, StateCallback done) {
  CallInputs pinned;
  for (const HandleName& handle : write.handles) {
    absl::StatusOr<HandlePin> pin = options_.handles->Pin(context.caller, handle);
    const absl::Status refused = !pin.ok() ? pin.status() : pin->tensors().status();
    if (!refused.ok()) {
      context.place.reset();  // before the caller hears
      return done(WithValue(refused, "field", "handles"));
    }
    pinned.AddPin(*std::move(pin));
  }
  const auto call = std::make_shared<Call>(std::move(context), std::move(write));
  call->inputs = std::move(pinned);
  AcceptState(call, std::move(done));
}

void ServedPipeline::ReadParameters(std::vector<std::string> names, bool with_optimizer, SnapshotCallback done) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) {
      refused = Error(absl::StatusCode::kUnavailable, "DRAINING", "the pipeline is closing");
    } else if (reads_.size() >= kMaxReads) {
      refused = Error(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                      absl::StrCat("at most ", kMaxReads, " reads of parameters may wait"))
                    .With("queue", "parameters")
                    .With("limit", "requests")
                    .With("limit_value", absl::StrCat(kMaxReads))
                    .With("retry_after_ms", "100");
    } else {
      reads_.push_back({std::move(names), with_optimizer, std::move(done)});
      return;
    }
  }
  done(Refused(std::move(refused)));
}

// --- How a call comes in.

absl::Status ServedPipeline::Refused(absl::Status status) const {
  if (options_.metrics != nullptr) options_.metrics->rejected[RejectReasonOf(status)].Add();
  return WithValue(std::move(status), "pipeline", options_.name);
}

absl::StatusOr<std::optional<RecordedAnswer>> ServedPipeline::Recorded(const Call& call) {
  return log_.Find(call.key(), call.context.payload_digest, options_.clock->NowNanos());
}

bool ServedPipeline::HasAccepted(const std::string& caller, const std::string& request_id) const {
  absl::MutexLock lock(&mu_);
  for (const char* method : MethodNames()) {
    if (log_.Contains({.caller = caller, .method = method, .request_id = request_id})) return true;
  }
  return false;
}

absl::Status ServedPipeline::Admit(const Call& call, bool handles_reserved) const {
  if (state_ != State::kReady) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "the pipeline accepts no new work");
  }
  if (!call.training.has_value()) return inference_.CheckNew(call);
  PENSTOCK_RETURN_IF_ERROR(training_.CheckNew(call, options_.clock->NowNanos()));
  if (call.As<ForwardCall>() != nullptr) {
    const int64_t others = options_.handles->CountsOf(options_.name).open_graphs - (handles_reserved ? 1 : 0);
    if (others >= options_.open_graphs) {
      return Error(absl::StatusCode::kResourceExhausted, "GRAPH_LIMIT",
                   absl::StrCat("at most ", options_.open_graphs, " graphs may be open; run or release some"))
          .With("limit_value", std::to_string(options_.open_graphs))
          .With("retry_after_ms", "1000");
    }
  }
  return absl::OkStatus();
}

absl::Status ServedPipeline::ReserveHandles(const CallPointer& call, const Results& results) {
  const auto producer = std::make_shared<Producer>(weak_from_this(), call);
  const auto reserve = [&](HandleKind kind, int64_t bytes, std::optional<HandleName>& name) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(name, options_.handles->Reserve({.owner = call->context.caller,
                                                               .pipeline = options_.name,
                                                               .kind = kind,
                                                               .method = call->method(),
                                                               .bytes = bytes,
                                                               .lease = call->context.lease,
                                                               .producer = producer}));
    return absl::OkStatus();
  };
  if (results.outcome) PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kOutcome, 0, call->accepted.outcome));
  if (results.outputs) {
    PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kValue, results.output_bytes, call->accepted.outputs));
  }
  if (results.graph) PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kGraph, 0, call->accepted.graph));
  return absl::OkStatus();
}

absl::StatusOr<Accepted> ServedPipeline::Accept(const CallPointer& call, const Prepare& prepare) {
  call->accepted.request_id = call->context.request_id;
  {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<std::optional<RecordedAnswer>> recorded = Recorded(*call);
    if (!recorded.ok()) return Refused(recorded.status());
    if (recorded->has_value()) return std::get<Accepted>(**recorded);
    if (absl::Status admitted = Admit(*call, /*handles_reserved=*/false); !admitted.ok()) return Refused(admitted);
  }
  absl::StatusOr<Results> results = prepare(*call);
  if (!results.ok()) return Refused(results.status());
  absl::Status status = ReserveHandles(call, *results);
  // Weak references: a call that was cancelled must not live until its inputs are there.
  call->inputs.OnReady(options_.handles, [pipeline = weak_from_this(), waiting = std::weak_ptr<Call>(call)] {
    const auto alive = pipeline.lock();
    const auto ready = waiting.lock();
    if (alive != nullptr && ready != nullptr) alive->OnInputsReady(ready);
  });

  std::optional<RecordedAnswer> first;  // of an equal call that was accepted meanwhile
  if (status.ok()) {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<std::optional<RecordedAnswer>> recorded = Recorded(*call);
    status = recorded.status();
    if (status.ok() && recorded->has_value()) {
      first = *std::move(recorded);
    } else if (status.ok()) {
      status = Admit(*call, /*handles_reserved=*/true);
    }
    if (status.ok() && !first.has_value()) {
      Enqueue(call);
      log_.Record(call->key(), call->context.payload_digest, call->accepted, call->accepted_nanos);
      return call->accepted;
    }
  }
  for (const HandleName& name : call->accepted.handles()) options_.handles->Withdraw(name.id);
  if (!status.ok()) return Refused(std::move(status));
  return std::get<Accepted>(*std::move(first));
}

// A save, copy, restore, write or delete: no handles, so the callers wait in a StateJoin, which the request log knows from acceptance on.
void ServedPipeline::AcceptState(const CallPointer& call, StateCallback done) {
  JoinedCall<StateAnswer> joined;
  {
    absl::MutexLock lock(&mu_);
    const auto admit = [&]() -> absl::Status {
      mu_.AssertHeld();
      const absl::Status admitted = Admit(*call, /*handles_reserved=*/false);
      return admitted.ok() ? admitted : Refused(admitted);
    };
    joined = JoinOrAnswer<StateAnswer>(log_, call->key(), call->context.payload_digest, options_.clock->NowNanos(),
                                       done, admit);
    if (joined.first != nullptr) {
      absl::Cleanup forget = [&] {
        mu_.AssertHeld();
        log_.Erase(call->key());
      };
      call->join = joined.first;
      call->inputs_ready = true;
      Enqueue(call);
      std::move(forget).Cancel();
      return;
    }
  }
  call->context.place.reset();  // before the caller hears, so that its next call finds it free
  if (joined.now.has_value()) done(*std::move(joined.now));
}

void ServedPipeline::Enqueue(const CallPointer& call) {
  call->Enter(Call::Phase::kQueued);
  call->accepted_nanos = options_.clock->NowNanos();
  call->accepted.step = training_.step();
  absl::Duration timeout = call->context.work_timeout;
  if (call->training.has_value()) {
    training_.Add(call);
    if (timeout == absl::ZeroDuration() && call->As<ForwardCall>() != nullptr) timeout = options_.forward_timeout;
  } else {
    inference_.Add(call);
    if (timeout == absl::ZeroDuration()) timeout = options_.infer_timeout;
  }
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) {
    call->timer = options_.timers->Add(call->accepted_nanos + absl::ToInt64Nanoseconds(timeout),
                                       [pipeline = weak_from_this(), late = std::weak_ptr<Call>(call)] {
                                         const auto alive = pipeline.lock();
                                         const auto running = late.lock();
                                         if (alive != nullptr && running != nullptr) alive->OnDeadline(running);
                                       });
  }
  UpdateQueueMetrics();
}

}  // namespace penstock
