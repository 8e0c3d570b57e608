#include "engine/serve/call_runner.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/device.h"
#include "engine/device/torch_status.h"
#include "engine/exec/signature_check.h"
#include "engine/serve/batch_rows.h"
#include "engine/serve/open_training.h"
#include "engine/serve/published_weights.h"
#include "engine/serve/saved_state.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

// Of a batch: what a call may ask for. Rows may take no bytes, so that a request has any number of them.
constexpr int64_t kMaxMicroBatchesOfABatch = 4096;

// The dimension of an output that its signature leaves open: the batch first, then whatever the inputs have there.
int64_t OpenDimension(const NamedValues& inputs, size_t index, int64_t rows) {
  if (index == 0) return rows;
  int64_t largest = 1;
  for (const NamedValue& input : inputs) {
    const at::Tensor* tensor = input.value.any_tensor();
    if (tensor != nullptr && static_cast<int64_t>(index) < tensor->dim()) {
      largest = std::max(largest, tensor->size(static_cast<int64_t>(index)));
    }
  }
  return largest;
}

// What a loss compares an output with.
struct LossTensors {
  at::Tensor target;
  at::Tensor weights;
};

absl::StatusOr<at::Tensor> TakeLast(NamedValues& values, const std::string& field) {
  const Value value = std::move(values.back().value);
  values.pop_back();
  if (value.is_tensor()) {
    at::Tensor on_host;  // elements are counted, and shares of a loss summed up, before a stage has them
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { on_host = ToHost(*value.tensor()); }));
    return on_host;
  }
  const std::string type = value.is_whole() ? "a whole one" : value.TypeName();
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE", field + ": expected Tensor, but got " + type)
      .With("field", field)
      .With("value", type);
}

// The call has pinned them behind its inputs, where they do not stay.
absl::StatusOr<LossTensors> TakeLossTensors(const ContributionCall& contribution, NamedValues& values) {
  LossTensors taken;
  if (contribution.weights.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(taken.weights, TakeLast(values, "weights"));
  }
  if (contribution.target.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(taken.target, TakeLast(values, "target"));
  }
  return taken;
}

// The state as a save has found it.
struct HeldState {
  MemoryReservation held;
  NamedTensors state;
};

// The outputs that the caller wants kept; empty: all of a forward, none of a contribution.
const std::vector<std::string>& OutputsOf(const Call& call) {
  static const auto* const none = new std::vector<std::string>;
  if (const auto* infer = call.As<InferCall>()) return infer->request.outputs;
  if (const auto* forward = call.As<ForwardCall>()) return forward->request.outputs;
  const ContributionCall* contribution = ContributionOf(call.request);
  return contribution == nullptr ? *none : contribution->request.outputs;
}

// optimizer/NAME/SLOT for optimizer.NAME.SLOT, which a tensor on the wire may have as its name; else empty.
std::string OptimizerSlotName(const std::string& name) {
  static constexpr char kPrefix[] = "optimizer.";
  const size_t begin = sizeof(kPrefix) - 1;
  const size_t dot = name.rfind('.');
  if (name.compare(0, begin, kPrefix) != 0 || dot < begin) return "";
  return absl::StrCat("optimizer/", name.substr(begin, dot - begin), "/", name.substr(dot + 1));
}

// Elsewhere outputs are made on the host. An output may leave any stage.
bool HasAnAccelerator(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) { return !absl::StartsWith(LocalDeviceName(stage.device), "cpu"); });
}

// Of a call whose outputs may stay on a device.
std::optional<int64_t> ReplyBytesOf(const Call& call) {
  if (const auto* infer = call.As<InferCall>()) return infer->reply_bytes;
  if (const auto* forward = call.As<ForwardCall>()) return forward->reply_bytes;
  return std::nullopt;
}

}  // namespace

absl::Status CallRunner::CheckTensors(Call& call) const {
  const ContributionCall* contribution = ContributionOf(call.request);
  const bool takes_inputs = call.stoppable() || contribution != nullptr;
  if (!takes_inputs || call.inputs_checked || !call.inputs.ready()) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(NamedValues inputs, call.inputs.Take());
  LossTensors loss;
  if (contribution != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(loss, TakeLossTensors(*contribution, inputs));
  }
  PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckOutputs(OutputsOf(call)));
  PENSTOCK_ASSIGN_OR_RETURN(call.rows, pipeline_->CheckInputs(inputs, /*needs_rows=*/call.mode != BatchMode::kInfer));
  if (contribution != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckTarget(loss.target, loss.weights, contribution->request.loss, call.rows));
    if (const auto* evaluate = call.As<EvaluateCall>()) {
      PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckMetrics(evaluate->metrics, evaluate->batch.request.loss));
    }
    const std::optional<int64_t> total_rows = contribution->request.total_rows;
    if (total_rows.has_value() && *total_rows < call.rows) {
      return InvalidField("total_rows", absl::StrCat("must be at least the number of rows, ", call.rows),
                          std::to_string(*total_rows));
    }
  }
  const std::optional<int64_t> reply_bytes = ReplyBytesOf(call);
  if (reply_bytes.has_value() && HasAnAccelerator(pipeline_->plan())) {
    call.outputs_stay = *reply_bytes == 0 || OutputBytes(inputs, call) > *reply_bytes;
  }
  if (const auto* infer = call.As<InferCall>()) {
    call.batch_key = BatchKeyOf(inputs, infer->request, call.outputs_stay);
    const auto& weights = call.context.weights;
    if (weights != nullptr && !call.batch_key.empty()) absl::StrAppend(&call.batch_key, " of ", weights->version);
  }
  call.inputs_checked = true;
  return absl::OkStatus();
}

int64_t CallRunner::ExpectedOutputBytes(const Call& call) const {
  if (!call.inputs.ready()) return 0;  // charged when they are there
  const absl::StatusOr<NamedValues> inputs = call.inputs.Take();
  return inputs.ok() ? OutputBytes(*inputs, call) : 0;
}

int64_t CallRunner::OutputBytes(const NamedValues& inputs, const Call& call) const {
  const std::vector<std::string>& outputs = OutputsOf(call);
  int64_t bytes = 0;
  for (const TensorSignature& output : pipeline_->signature().outputs) {
    const bool wanted = outputs.empty() || std::find(outputs.begin(), outputs.end(), output.name) != outputs.end();
    if (!wanted) continue;
    if (output.any) continue;
    std::vector<int64_t> shape = output.shape;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] < 0) shape[i] = OpenDimension(inputs, i, call.rows);
    }
    const absl::StatusOr<int64_t> one = PayloadBytes(output.type, shape, output.name);
    // What can't be counted can't fit: the budget refuses it.
    if (!one.ok() || *one > (int64_t{1} << 50)) return std::numeric_limits<int64_t>::max() / 4;
    bytes += *one;
  }
  return bytes;
}

absl::StatusOr<ForwardRequest> CallRunner::Complete(ForwardRequest request, Call& call) const {
  PENSTOCK_RETURN_IF_ERROR(CheckTensors(call));
  PENSTOCK_ASSIGN_OR_RETURN(request.inputs, call.inputs.Take());
  request.cancel = call.cancel;
  request.outputs_stay = call.outputs_stay;
  return request;
}

absl::StatusOr<ContributionRequest> CallRunner::Complete(const ContributionCall& contribution, Call& call) const {
  PENSTOCK_RETURN_IF_ERROR(CheckTensors(call));
  ContributionRequest request = contribution.request;
  PENSTOCK_ASSIGN_OR_RETURN(request.inputs, call.inputs.Take());
  PENSTOCK_ASSIGN_OR_RETURN(LossTensors loss, TakeLossTensors(contribution, request.inputs));
  request.target = std::move(loss.target);
  request.weights = std::move(loss.weights);
  request.cancel = call.cancel;
  return request;
}

Pipeline& CallRunner::EngineOf(const Call& call) const {
  const auto& weights = call.context.weights;
  return weights == nullptr ? *pipeline_ : *weights->pipeline;
}

void CallRunner::StartInference(Call& call, std::function<void(absl::StatusOr<RunOutcome>)> done) const {
  if (const auto* evaluate = call.As<EvaluateCall>()) {
    absl::StatusOr<ContributionRequest> batch = Complete(evaluate->batch, call);
    if (!batch.ok()) return done(batch.status());
    return pipeline_->EvaluateAsync(
        {.batch = *std::move(batch), .metrics = evaluate->metrics, .priority = evaluate->priority, .turn = call.turn},
        std::move(done));
  }
  absl::StatusOr<ForwardRequest> request = Complete(call.As<InferCall>()->request, call);
  if (!request.ok()) return done(request.status());
  request->turn = call.turn;
  EngineOf(call).InferAsync(*std::move(request),
                            [done = std::move(done), rows = call.rows](absl::StatusOr<ForwardOutcome> outcome) {
                              if (!outcome.ok()) return done(outcome.status());
                              RunOutcome run;
                              run.step = outcome->step;
                              run.rows = rows;
                              run.outputs = std::move(outcome->outputs);
                              done(std::move(run));
                            });
}

void CallRunner::StartBatch(const std::vector<CallPointer>& calls, int64_t micro_batch_rows, BatchDone done) const {
  std::vector<NamedValues> inputs;
  std::vector<int64_t> rows;
  std::vector<std::shared_ptr<const CancelToken>> tokens;
  for (const CallPointer& call : calls) {
    absl::StatusOr<NamedValues> its = call->inputs.Take();
    if (!its.ok()) return done(its.status());
    inputs.push_back(*std::move(its));
    rows.push_back(call->rows);
    tokens.push_back(call->cancel);
  }
  // The copy of all rows, beside those of the calls.
  MemoryReservation held;
  if (calls.size() > 1) {
    int64_t bytes = 0;
    for (const NamedValues& request : inputs) {
      for (const NamedValue& input : request) bytes += static_cast<int64_t>(input.value.tensor()->nbytes());
    }
    absl::StatusOr<MemoryReservation> taken =
        TakeMemory(memory_, {.kind = MemoryClass::kInputs, .pipeline = name_}, bytes);
    if (!taken.ok()) return done(taken.status());
    held = *std::move(taken);
  }
  const Call& first = *calls.front();
  ForwardRequest request = first.As<InferCall>()->request;
  request.inputs = JoinRows(inputs);
  const int64_t micro_batches = (TotalRows(rows) + micro_batch_rows - 1) / micro_batch_rows;
  request.micro_batches = static_cast<int>(std::min(micro_batches, kMaxMicroBatchesOfABatch));
  request.cancel = calls.size() == 1 ? first.cancel : std::make_shared<CancelToken>(std::move(tokens));
  request.turn = first.turn;
  request.outputs_stay = first.outputs_stay;
  // Calls of one key have the same weights.
  EngineOf(first).InferAsync(std::move(request), [done = std::move(done), rows = std::move(rows),
                                                  held = std::make_shared<MemoryReservation>(std::move(held))](
                                                     absl::StatusOr<ForwardOutcome> outcome) {
    held->Release();
    if (!outcome.ok()) return done(outcome.status());
    done(Guarded("a batch of inference", [&]() -> absl::StatusOr<std::vector<RunOutcome>> {
      PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedValues> parted, PartRows(outcome->outputs, rows));
      std::vector<RunOutcome> outcomes(rows.size());
      for (size_t k = 0; k < rows.size(); ++k) {
        outcomes[k].step = outcome->step;
        outcomes[k].rows = rows[k];
        outcomes[k].outputs = std::move(parted[k]);
      }
      return outcomes;
    }));
  });
}

absl::StatusOr<Executed> CallRunner::Run(Call& call) {
  return std::visit([&](const auto& request) { return Run(request, call); }, call.request);
}

absl::StatusOr<Executed> CallRunner::Run(const InferCall&, Call&) const {
  return Error(absl::StatusCode::kInternal, "BUG", "inference stands in the training order");
}

absl::StatusOr<Executed> CallRunner::Run(const EvaluateCall&, Call&) const {
  return Error(absl::StatusCode::kInternal, "BUG", "evaluation stands in the training order");
}

absl::StatusOr<Executed> CallRunner::Run(const ForwardCall& forward, Call& call) const {
  PENSTOCK_ASSIGN_OR_RETURN(ForwardRequest request, Complete(forward.request, call));
  PENSTOCK_ASSIGN_OR_RETURN(ForwardOutcome outcome, pipeline_->Forward(std::move(request)));
  Executed executed;
  executed.graph = std::move(outcome.graph);
  executed.run.outputs = std::move(outcome.outputs);
  executed.run.step = outcome.step;
  executed.run.rows = call.rows;
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const BackwardCall& backward, Call& call) const {
  PENSTOCK_ASSIGN_OR_RETURN(const NamedValues values, call.inputs.Take());
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, call.inputs.pin(call.graph_pin).graph());
  PENSTOCK_ASSIGN_OR_RETURN(NamedTensors gradients, ToTensors(values));
  Executed executed;
  PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->Backward(graph, std::move(gradients), backward.retain_graph));
  for (NamedValue& gradient : executed.run.input_gradients) {
    if (backward.input_gradients && gradient.value.is_tensor()) executed.run.outputs.push_back(std::move(gradient));
  }
  executed.run.input_gradients.clear();
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const ContributionCall& contribution, Call& call) const {
  PENSTOCK_ASSIGN_OR_RETURN(ContributionRequest request, Complete(contribution, call));
  Executed executed;
  PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->ForwardBackward(std::move(request)));
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const TrainStepCall& step, Call& call) const {
  PENSTOCK_ASSIGN_OR_RETURN(ContributionRequest request, Complete(step.contribution, call));
  Executed executed;
  PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->TrainStep(std::move(request), step.step));
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const StepCall& step, Call&) const {
  if (step.discard) return Discard();
  Executed executed;
  PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->OptimizerStep(step.request));
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const ExpireCall&, Call&) const { return Discard(); }

absl::StatusOr<Executed> CallRunner::Discard() const {
  pipeline_->DiscardGradients();
  Executed executed;
  executed.run.step = pipeline_->step();
  return executed;
}

std::shared_ptr<const std::string> CallRunner::Specification() {
  if (!origin_.describe) return nullptr;
  std::string now = origin_.describe(*pipeline_);
  if (specification_ == nullptr || *specification_ != now)
    specification_ = std::make_shared<const std::string>(std::move(now));
  return specification_;
}

absl::StatusOr<MemoryReservation> CallRunner::HoldState(const Call& call, int64_t bytes) const {
  MemoryHolder holder{MemoryClass::kSnapshots, call.context.caller, name_};
  if (call.repeated) return TakeMemoryAnyway(memory_, std::move(holder), bytes);
  return TakeMemory(memory_, std::move(holder), bytes);
}

absl::StatusOr<Executed> CallRunner::Run(const SaveCall& save, Call& call) {
  Executed executed;
  executed.run.step = pipeline_->step();
  std::string id = save.id.empty() ? absl::StrCat("step-", executed.run.step) : save.id;
  if (save.last) id = checkpoints_->FreeId(executed.run.step);
  if (std::optional<CheckpointInfo> saved = SavedBy(call, id); saved.has_value()) {
    executed.checkpoint = *std::move(saved);
    if (save.keep > 0) Rotate(save.keep, id);
    return executed;
  }
  CheckpointPins::Hold replaced;
  if (save.replace) {
    PENSTOCK_ASSIGN_OR_RETURN(replaced, Change(id));
  }
  if (!save.replace || !checkpoints_->Find(id).ok()) PENSTOCK_RETURN_IF_ERROR(checkpoints_->CheckFree(id));
  // Before the state is copied.
  const int64_t bytes = ByteSize(pipeline_->StateShapes());
  const auto copy = std::make_shared<HeldState>();
  if (!save.last) {
    PENSTOCK_RETURN_IF_ERROR(checkpoints_->CheckRoom(id, bytes));
    PENSTOCK_ASSIGN_OR_RETURN(copy->held, HoldState(call, bytes));
  } else {
    copy->held = TakeMemoryAnyway(memory_, {.kind = MemoryClass::kSnapshots, .pipeline = name_}, bytes);
  }
  PENSTOCK_ASSIGN_OR_RETURN(copy->state, pipeline_->ExportState(true));
  const CheckpointFacts facts{.step = executed.run.step,
                              .spec_digest = origin_.spec_digest,
                              .specification = Specification(),
                              .rotating = save.keep > 0,
                              .place = PlaceOf(call)};
  executed.write = [this, copy, id, facts, save, replaced, cancel = call.cancel]() -> absl::StatusOr<CheckpointInfo> {
    PENSTOCK_ASSIGN_OR_RETURN(CheckpointInfo saved, checkpoints_->Save(id, facts, copy->state,
                                                                       {.cancel = save.last ? cancel.get() : nullptr,
                                                                        .beyond_quota = save.last,
                                                                        .replace = save.replace}));
    if (save.keep > 0) Rotate(save.keep, id);
    return saved;
  };
  return executed;
}

CheckpointPlace CallRunner::PlaceOf(const Call& call) const {
  if (origin_.life.empty()) return {};
  // The last save of a life comes after calls that are left in the journal.
  const auto* save = call.As<SaveCall>();
  const bool last = save != nullptr && save->last;
  return {.life = origin_.life,
          .sequence = last ? call.ended_before : call.accepted.sequence,
          .version = call.state_version,
          .whole = call.at_boundary};
}

std::optional<CheckpointInfo> CallRunner::SavedBy(const Call& call, const std::string& id) const {
  absl::StatusOr<CheckpointInfo> found = checkpoints_->Find(id);
  const bool same = call.again && found.ok() && found->damage.empty() && found->place.life == origin_.life &&
                    found->place.sequence == call.accepted.sequence;
  return same ? std::optional<CheckpointInfo>(*std::move(found)) : std::nullopt;
}

absl::StatusOr<CallRunner::WriteState> CallRunner::CopyState(const std::string& id, CheckpointPlace place,
                                                             TrainingState::Saved state) {
  const auto copy = std::make_shared<HeldState>();
  copy->held = TakeMemoryAnyway(memory_, {.kind = MemoryClass::kSnapshots, .pipeline = name_},
                                ByteSize(pipeline_->StateShapes()) + pipeline_->AccumulationBytes());
  PENSTOCK_ASSIGN_OR_RETURN(copy->state, pipeline_->ExportState(true));
  OpenTraining training{.state = std::move(state)};
  PENSTOCK_ASSIGN_OR_RETURN(training.accumulation, pipeline_->ExportAccumulation());
  if (training.none()) training.accumulation.tensors.clear();
  for (NamedTensor& tensor : training.accumulation.tensors) {
    copy->state.push_back({std::string(kTrainingTensors) + tensor.name, std::move(tensor.tensor)});
  }
  CheckpointFacts facts{.step = pipeline_->step(),
                        .spec_digest = origin_.spec_digest,
                        .specification = Specification(),
                        .place = std::move(place),
                        .training = FormatOpenTraining(training)};
  return [this, copy, id, facts = std::move(facts)](const CancelToken* cancel) {
    return checkpoints_->Save(id, facts, copy->state, {.cancel = cancel, .beyond_quota = true, .replace = true});
  };
}

void CallRunner::Rotate(int keep, const std::string& saved) const {
  std::vector<CheckpointInfo> rotating = checkpoints_->List();
  std::erase_if(rotating, [&](const CheckpointInfo& info) {
    return !info.rotating || !info.damage.empty() || info.id == saved || info.id == origin_.restored_from ||
           pins_->IsPinned(info.id);
  });
  std::sort(rotating.begin(), rotating.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return std::tie(a.create_time, a.step, a.id) < std::tie(b.create_time, b.step, b.id);
  });
  for (size_t i = 0; i + static_cast<size_t>(keep) <= rotating.size(); ++i) {
    const std::string& id = rotating[i].id;
    const absl::StatusOr<CheckpointPins::Hold> change = pins_->Change(id);
    if (!change.ok()) continue;  // it has been published meanwhile
    if (const absl::Status removed = checkpoints_->Remove(id); !removed.ok()) {
      LogWarning("can't delete an old checkpoint",
                 {{"pipeline", name_}, {"checkpoint", id}, {"error", std::string(removed.message())}});
    }
  }
}

absl::Status CallRunner::CheckUnused(const std::string& id) const {
  const absl::StatusOr<CheckpointInfo> info = checkpoints_->Find(id);
  if (!info.ok() || !info->place.automatic || info->place.life != origin_.life) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_IN_USE",
               absl::StrCat("checkpoint ", id, " is the journal's, which deletes it when newer ones are there"))
      .With("checkpoint", id)
      .With("pipeline", name_);
}

absl::StatusOr<Executed> CallRunner::Run(const CopyCall& copy, Call& call) const {
  const std::string id = copy.id.empty() ? copy.source_id : copy.id;
  if (std::optional<CheckpointInfo> saved = SavedBy(call, id); saved.has_value()) {
    Executed executed;
    executed.run.step = pipeline_->step();
    executed.checkpoint = *std::move(saved);
    return executed;
  }
  PENSTOCK_RETURN_IF_ERROR(checkpoints_->CheckFree(id));
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointInfo source, copy.source->Find(copy.source_id));
  PENSTOCK_RETURN_IF_ERROR(CheckProgram(source, origin_.spec_digest));
  PENSTOCK_RETURN_IF_ERROR(checkpoints_->CheckRoom(id, source.bytes));
  PENSTOCK_ASSIGN_OR_RETURN(const MemoryReservation held, HoldState(call, 2 * source.bytes));
  PENSTOCK_ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, copy.source->Load(copy.source_id));
  const absl::Status fits = CheckState(loaded.state, pipeline_->StateShapes());
  if (!fits.ok()) return WithValue(fits, "checkpoint", copy.source_id);
  CheckpointPlace place = PlaceOf(call);
  place.whole = false;  // it is of another state
  Executed executed;
  executed.run.step = pipeline_->step();
  PENSTOCK_ASSIGN_OR_RETURN(executed.checkpoint, checkpoints_->Save(id,
                                                                    {.step = loaded.info.step,
                                                                     .spec_digest = loaded.info.spec_digest,
                                                                     .specification = loaded.info.specification,
                                                                     .place = std::move(place)},
                                                                    loaded.state));
  return executed;
}

absl::StatusOr<CheckpointPins::Hold> CallRunner::Change(const std::string& id) const {
  absl::StatusOr<CheckpointPins::Hold> change = pins_->Change(id);
  if (!change.ok()) return WithValue(change.status(), "pipeline", name_);
  return change;
}

absl::StatusOr<Executed> CallRunner::Run(const DeleteCall& remove, Call& call) const {
  PENSTOCK_RETURN_IF_ERROR(CheckUnused(remove.id));
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointPins::Hold change, Change(remove.id));
  const absl::Status removed = checkpoints_->Remove(remove.id);
  if (!call.again || !absl::IsNotFound(removed)) PENSTOCK_RETURN_IF_ERROR(removed);
  Executed executed;
  executed.run.step = pipeline_->step();
  executed.checkpoint = CheckpointInfo{.pipeline = name_, .id = remove.id};
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const ReadCall& read, Call& call) const {
  if (call.cancel->cancelled()) return CancelledCall();  // nobody is left to read a copy
  Executed executed;
  executed.run.step = pipeline_->step();
  PENSTOCK_ASSIGN_OR_RETURN(executed.snapshot, reader_.Take(read, call.context.caller, call.read_version));
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const UpdateOptimizerCall& update, Call&) const {
  PENSTOCK_RETURN_IF_ERROR(pipeline_->UpdateOptimizer(update.optimizer));
  Executed executed;
  executed.run.step = pipeline_->step();
  executed.checkpoint = CheckpointInfo{};
  executed.replaced_state = true;
  return executed;
}

// It changes the journal, and not the state.
absl::StatusOr<Executed> CallRunner::Run(const CompactCall&, Call&) const {
  Executed executed;
  executed.run.step = pipeline_->step();
  return executed;
}

// It brings the state into the other engine, which is nobody's yet.
absl::StatusOr<Executed> CallRunner::Run(const UpdateCall& update, Call& call) const {
  Pipeline& next = *update.engine->pipeline;
  PENSTOCK_ASSIGN_OR_RETURN(const MemoryReservation held, HoldState(call, ByteSize(pipeline_->StateShapes())));
  PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors state, pipeline_->ExportState(true));
  PENSTOCK_RETURN_IF_ERROR(CheckState(state, next.StateShapes()));
  PENSTOCK_RETURN_IF_ERROR(next.UpdateOptimizer(pipeline_->optimizer()));
  next.SetNextState(call.state_version);  // so that tokens stay
  PENSTOCK_RETURN_IF_ERROR(next.ImportState(state, pipeline_->step()));
  Executed executed;
  executed.run.step = pipeline_->step();
  return executed;
}

absl::StatusOr<Executed> CallRunner::Replace(const NamedTensors& state, int64_t step) const {
  PENSTOCK_RETURN_IF_ERROR(pipeline_->ImportState(state, step));
  pipeline_->DiscardGradients();
  Executed executed;
  executed.run.step = pipeline_->step();
  executed.checkpoint = CheckpointInfo{};
  executed.replaced_state = true;
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const RestoreCall& restore, Call& call) {
  // Known without reading the tensors. One that is not there is Load's to refuse.
  MemoryReservation held;  // of the file and of its tensors
  if (const absl::StatusOr<CheckpointInfo> info = checkpoints_->Find(restore.id); info.ok()) {
    PENSTOCK_RETURN_IF_ERROR(CheckProgram(*info, origin_.spec_digest));
    PENSTOCK_ASSIGN_OR_RETURN(held, HoldState(call, 2 * info->bytes));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, checkpoints_->Load(restore.id));
  absl::StatusOr<Executed> executed = Replace(loaded.state, loaded.info.step);
  if (!executed.ok()) return WithValue(executed.status(), "checkpoint", restore.id);
  executed->checkpoint = loaded.info;
  origin_.restored_from = restore.id;
  return executed;
}

absl::StatusOr<Executed> CallRunner::Run(const WriteCall& write, Call& call) const {
  NamedTensors state = pipeline_->StateShapes();
  std::unordered_map<std::string, NamedTensor*> places;
  for (NamedTensor& tensor : state) places.emplace(tensor.name, &tensor);
  std::unordered_set<std::string> written;
  for (size_t i = 0; i < write.handles.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors tensors, call.inputs.pin(static_cast<int>(i)).tensors());
    for (const NamedTensor& given : tensors) {
      auto place = places.find(given.name);
      if (place == places.end()) place = places.find(OptimizerSlotName(given.name));
      if (place == places.end()) {
        if (written.contains(given.name) || written.contains(OptimizerSlotName(given.name))) {
          return InvalidField(absl::StrCat("handles[", i, "]"), "names a parameter twice", Shortened(given.name));
        }
        return Error(absl::StatusCode::kNotFound, "PARAMETER_NOT_FOUND",
                     absl::StrCat("the pipeline has no parameter of this name, got ", Shortened(given.name)))
            .With("field", "handles")
            .With("value", Shortened(given.name))
            .With("pipeline", name_);
      }
      at::Tensor& tensor = place->second->tensor;
      if (given.tensor.sizes() != tensor.sizes() || given.tensor.scalar_type() != tensor.scalar_type()) {
        return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                     absl::StrCat(given.name, ": must be ", ShapeText(tensor.sizes()), " of ",
                                  c10::toString(tensor.scalar_type()), ", got ", ShapeText(given.tensor.sizes()),
                                  " of ", c10::toString(given.tensor.scalar_type())))
            .With("field", given.name)
            .With("value", ShapeText(given.tensor.sizes()));
      }
      tensor = given.tensor;
      written.insert(place->first);
      places.erase(place);
    }
  }
  MemoryReservation held;  // of a copy of the rest
  if (!places.empty()) {   // what was not given stays; of a broken pipeline all must be given
    PENSTOCK_ASSIGN_OR_RETURN(held, HoldState(call, ByteSize(state)));
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors kept, pipeline_->ExportState(true));
    for (const NamedTensor& tensor : kept) {
      if (const auto place = places.find(tensor.name); place != places.end()) place->second->tensor = tensor.tensor;
    }
  }
  return Replace(state, write.step.value_or(pipeline_->step()));
}

}  // namespace penstock
