// The thread that runs the training order of a ServedPipeline: one call after another, snapshots between them.

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/log_scope.h"
#include "engine/base/status_macros.h"
#include "engine/exec/signature_check.h"
#include "engine/plan/layer_names.h"
#include "engine/serve/served_pipeline.h"
#include "engine/tensor/microbatch.h"

namespace penstock {
namespace {

// What stands behind the blank in the digest of a specification.
std::string ProgramDigest(const std::string& spec_digest) {
  const size_t blank = spec_digest.find(' ');
  return blank == std::string::npos ? "" : spec_digest.substr(blank + 1);
}

// The name of an optimizer's slot as a tensor on the wire may have it, optimizer.NAME.SLOT, is optimizer/NAME/SLOT; or empty.
std::string OptimizerSlotName(const std::string& name) {
  static constexpr char kPrefix[] = "optimizer.";
  const size_t begin = sizeof(kPrefix) - 1;
  const size_t dot = name.rfind('.');
  if (name.compare(0, begin, kPrefix) != 0 || dot < begin) return "";
  return absl::StrCat("optimizer/", name.substr(begin, dot - begin), "/", name.substr(dot + 1));
}

}  // namespace

void ServedPipeline::NoteVersions(const Work& work, const Executed& executed) {
  const bool reads = work.method == WorkMethod::kForward || work.method == WorkMethod::kSaveCheckpoint ||
                     work.method == WorkMethod::kDeleteCheckpoint;
  if (!reads) ++version_;
  if (Discards(*work.training)) return;  // forgets gradients, leaves the weights
  switch (work.method) {
    case WorkMethod::kTrainStep:
    case WorkMethod::kOptimizerStep:
    case WorkMethod::kWriteParameters:
      ++weights_version_;
      break;
    case WorkMethod::kRestoreCheckpoint:
      saved_version_ = ++weights_version_;
      saved_checkpoint_ = executed.checkpoint->id;
      break;
    case WorkMethod::kSaveCheckpoint:
      saved_version_ = weights_version_;
      saved_checkpoint_ = executed.checkpoint->id;
      break;
    case WorkMethod::kDeleteCheckpoint:
      if (work.checkpoint_id == saved_checkpoint_) saved_version_ = -1;
      break;
    default:
      break;
  }
}

void ServedPipeline::TrainLoop() {
  const auto something = [this] {
    mu_.AssertReaderHeld();
    const bool runnable = !train_queue_.empty() && train_queue_.front()->inputs_ready;
    return stopping_ || runnable || !snapshots_.empty() || idle_reason_stale_;
  };
  while (true) {
    WorkPointer work;
    std::deque<SnapshotRequest> snapshots;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (stopping_ && snapshots_.empty()) return;  // Stop() has emptied the queue
      snapshots.swap(snapshots_);
      snapshots_running_ = static_cast<int64_t>(snapshots.size());
      if (!train_queue_.empty() && train_queue_.front()->inputs_ready) {
        work = train_queue_.front();
        train_queue_.pop_front();
        train_bounds_.Remove(work->context.caller, work->inputs.inline_bytes());
        work->phase = Work::Phase::kRunning;
        train_running_ = work;
        UpdateQueueMetrics();
      }
    }
    for (const SnapshotRequest& request : snapshots) {
      auto snapshot = Guarded("a read of parameters", [&] { return TakeSnapshot(request); });
      if (!snapshot.ok()) snapshot = WithValue(snapshot.status(), "pipeline", options_.name);
      Guarded("a read of parameters", [&] { request.done(std::move(snapshot)); }).IgnoreError();
    }
    if (work != nullptr) {
      const absl::Status ran = Guarded("a training call", [&] { RunTraining(work); });
      if (!ran.ok()) Guarded("a training call", [&] { FailRun(work, ran); }).IgnoreError();
    }
    Guarded("the idle reason", [this] { UpdateIdleReason(); }).IgnoreError();
    {
      absl::MutexLock lock(&mu_);
      train_running_ = nullptr;
      snapshots_running_ = 0;
    }
    work.reset();
    Guarded("the end of a drain", [this] { NotifyIfDrained(); }).IgnoreError();
  }
}

void ServedPipeline::RunTraining(const WorkPointer& work) {
  work->started_nanos = options_.clock->NowNanos();
  // Trace records belong to the step that they will end. Saves and the like have none.
  const bool traced = work->batch_mode().has_value() || work->training == TrainingCall::kApply;
  const int64_t step = traced ? pipeline_->step() + 1 : 0;
  const LogScope scope(LogFieldsOf(*work, step));
  if (options_.metrics != nullptr) {
    options_.metrics->queues[WorkQueue::kTrain].wait.Observe(work->started_nanos - work->accepted_nanos);
  }
  if (options_.metrics != nullptr && work->batch_mode()) options_.metrics->BatchStarted(*work->batch_mode());
  absl::StatusOr<Executed> executed = Guarded("a training call", [&] { return Execute(*work); });

  std::vector<HandleId> stale_graphs;
  std::string token;
  {
    absl::MutexLock lock(&mu_);
    work->phase = Work::Phase::kDone;
    if (executed.ok()) {
      training_.Apply(*work->training, work->party(), options_.clock->NowNanos(), work->accumulation_lease);
      const int64_t step = executed->run.step;
      if (step != step_ || executed->replaced_state) {
        stale_graphs.swap(graphs_);
        graphs_to_inputs_.clear();
      }
      step_ = step;
      NoteVersions(*work, *executed);
      if (work->accepted.graph.has_value()) {
        graphs_.push_back(work->accepted.graph->id);
        if (work->input_gradients) graphs_to_inputs_.push_back(work->accepted.graph->id);
      }
      if (work->batch_mode() == BatchMode::kTrain) {
        statistics_.samples_trained += executed->run.rows;
        if (executed->run.loss.has_value()) statistics_.last_loss = executed->run.loss;
        statistics_.last_measured_bubble = executed->run.measured_bubble;
      }
    } else if (work->deadline_passed) {
      executed = absl::Status(
          Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran"));
    }
    training_.Reconcile(pipeline_->accumulating(), work->party(), options_.clock->NowNanos());
    WatchAccumulation(*work);
    token = StateToken();
  }
  CountRun(*work, executed.status(), executed.ok() ? &executed->run : nullptr);
  TellEnded(*work, step, executed.status());
  if (executed.ok()) {
    SettleExecuted(work, *std::move(executed), token, stale_graphs);
  } else {
    SettleFailed(work, executed.status());
  }
  LetGo(*work);
}

absl::StatusOr<ServedPipeline::Executed> ServedPipeline::Execute(Work& work) {
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_RETURN_IF_ERROR(training_.Check(*work.training, work.party(), options_.clock->NowNanos()));
    if (!work.context.expected_state.empty() && work.context.expected_state != StateToken()) {
      return Error(absl::StatusCode::kFailedPrecondition, "STATE_MISMATCH",
                   "the training state is not the expected one: another call came first")
          .With("field", "expected_state")
          .With("value", Shortened(work.context.expected_state));
    }
  }
  PENSTOCK_RETURN_IF_ERROR(CheckTensors(work));
  PENSTOCK_ASSIGN_OR_RETURN(NamedValues inputs, work.inputs.Take());
  Executed executed;
  executed.run.step = pipeline_->step();
  ContributionRequest contribution;
  if (work.has_target) {
    PENSTOCK_ASSIGN_OR_RETURN(contribution.target, TargetOf(inputs.back()));
    inputs.pop_back();
  }
  if (work.contributes) {
    contribution.loss = work.loss;
    contribution.micro_batches = work.micro_batches;
    contribution.total_rows = work.total_rows;
    contribution.total_elements = work.total_elements;
    contribution.outputs = work.outputs;
    contribution.cancel = work.cancel;
    contribution.inputs = std::move(inputs);
  }
  switch (work.method) {
    case WorkMethod::kForward: {
      PENSTOCK_ASSIGN_OR_RETURN(ForwardOutcome outcome, pipeline_->Forward({.inputs = std::move(inputs),
                                                                            .micro_batches = work.micro_batches,
                                                                            .outputs = work.outputs,
                                                                            .cancel = work.cancel,
                                                                            .input_gradients = work.input_gradients}));
      executed.graph = Watched(std::move(outcome.graph));
      executed.run.outputs = std::move(outcome.outputs);
      executed.run.step = outcome.step;
      executed.run.rows = work.rows;
      return executed;
    }
    case WorkMethod::kBackward: {
      PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Graph> graph, work.inputs.pin(work.graph_pin).graph());
      PENSTOCK_RETURN_IF_ERROR(CheckInputGradients(work));
      PENSTOCK_ASSIGN_OR_RETURN(NamedTensors gradients, ToTensors(inputs));
      PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->Backward(graph, std::move(gradients), work.retain_graph));
      if (work.input_gradients) {
        for (NamedValue& gradient : executed.run.input_gradients) {
          if (gradient.value.is_tensor()) executed.run.outputs.push_back(std::move(gradient));
        }
      }
      executed.run.input_gradients.clear();
      return executed;
    }
    case WorkMethod::kForwardBackward: {
      PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->ForwardBackward(std::move(contribution)));
      return executed;
    }
    case WorkMethod::kTrainStep: {
      PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->TrainStep(std::move(contribution), work.step));
      return executed;
    }
    case WorkMethod::kOptimizerStep: {
      if (Discards(*work.training)) {
        pipeline_->DiscardGradients();
        return executed;
      }
      PENSTOCK_ASSIGN_OR_RETURN(executed.run, pipeline_->OptimizerStep(work.step));
      return executed;
    }
    case WorkMethod::kSaveCheckpoint: {
      if (work.last_save) work.checkpoint_id = checkpoints_->FreeId(executed.run.step);
      const std::string id = work.checkpoint_id.empty() ? absl::StrCat("step-", executed.run.step) : work.checkpoint_id;
      PENSTOCK_RETURN_IF_ERROR(checkpoints_->CheckFree(id));
      PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors state, pipeline_->ExportState(true));
      PENSTOCK_ASSIGN_OR_RETURN(executed.checkpoint,
                                checkpoints_->Save(id, executed.run.step, options_.spec_digest, state,
                                                   work.last_save ? work.cancel.get() : nullptr,
                                                   /*beyond_quota=*/work.last_save));
      return executed;
    }
    case WorkMethod::kDeleteCheckpoint: {
      PENSTOCK_RETURN_IF_ERROR(checkpoints_->Remove(work.checkpoint_id));
      executed.checkpoint = CheckpointInfo{.pipeline = options_.name, .id = work.checkpoint_id};
      return executed;
    }
    case WorkMethod::kRestoreCheckpoint:
      return ExecuteRestore(work);
    case WorkMethod::kWriteParameters:
      return ExecuteWrite(work);
    case WorkMethod::kInfer:
      break;
  }
  return Error(absl::StatusCode::kInternal, "BUG", "inference stands in the training order");
}

// Sees to it that an accumulation with a lease ends, in the order of calls.
void ServedPipeline::WatchAccumulation(const Work& ended) {
  if (!training_.expires_at().has_value()) return;
  const bool over = *training_.expires_at() <= options_.clock->NowNanos();  // and `ended` was in the way
  if (ended.training != TrainingCall::kContribution && !over) return;
  options_.timers->Add(*training_.expires_at(), [host = weak_from_this()] {
    if (const auto self = host.lock()) self->ExpireAccumulation();
  });
}

void ServedPipeline::ExpireAccumulation() {
  TrainingParty holder;
  {
    absl::MutexLock lock(&mu_);
    const int64_t now = options_.clock->NowNanos();
    if (state_ != State::kReady || !training_.expires_at().has_value() || now < *training_.expires_at()) return;
    holder = *training_.holder();
    // A call of the holder that came in time goes on with what there is, or ends it.
    const auto of_holder = [&holder](const WorkPointer& work) {
      return work->party() == holder && work->training != TrainingCall::kForward;
    };
    if (std::any_of(train_queue_.begin(), train_queue_.end(), of_holder)) return;
    const bool runs = train_running_ != nullptr && train_running_->phase == Work::Phase::kRunning;
    if (runs && of_holder(train_running_)) return;
    auto work = std::make_shared<Work>();
    work->method = WorkMethod::kOptimizerStep;
    work->training = TrainingCall::kExpire;
    work->context.caller = holder.caller;
    work->context.session = holder.session;
    work->inputs_ready = true;
    Enqueue(work);
  }
  LogWarning("accumulated gradients are discarded: their lease is over",
             {{"pipeline", options_.name}, {"caller", holder.caller}, {"session", holder.session}});
}

// Gradients that the forward did not prepare for are refused before anything is added.
absl::Status ServedPipeline::CheckInputGradients(const Work& work) const {
  if (!work.input_gradients) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const HandleId& graph = work.inputs.pin(work.graph_pin).name().id;
  if (std::find(graphs_to_inputs_.begin(), graphs_to_inputs_.end(), graph) != graphs_to_inputs_.end()) {
    return absl::OkStatus();
  }
  return InvalidField("input_gradients", "must have been asked of the forward too", "true");
}

absl::StatusOr<ServedPipeline::Executed> ServedPipeline::ExecuteRestore(Work& work) {
  // Known without reading the tensors. One that is not there or damaged is Load's to refuse.
  if (const absl::StatusOr<CheckpointInfo> info = checkpoints_->Find(work.checkpoint_id); info.ok() && !info->damaged) {
    const std::string saved = ProgramDigest(info->spec_digest);
    const std::string here = ProgramDigest(options_.spec_digest);
    if (saved != here) {
      return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
                   absl::StrCat("the checkpoint was saved from another model file, ", saved.empty() ? "none" : saved,
                                ", got ", here.empty() ? "none" : here))
          .With("field", "spec.model.program_digest")
          .With("value", here)
          .With("checkpoint", work.checkpoint_id);
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const LoadedCheckpoint loaded, checkpoints_->Load(work.checkpoint_id));
  if (absl::Status imported = pipeline_->ImportState(loaded.state, loaded.info.step); !imported.ok()) {
    return WithValue(std::move(imported), "checkpoint", work.checkpoint_id);
  }
  pipeline_->DiscardGradients();  // of the weights that are gone
  Executed executed;
  executed.run.step = pipeline_->step();
  executed.checkpoint = loaded.info;
  executed.replaced_state = true;
  return executed;
}

absl::StatusOr<ServedPipeline::Executed> ServedPipeline::ExecuteWrite(Work& work) {
  NamedTensors state = pipeline_->StateShapes();
  std::unordered_map<std::string, NamedTensor*> places;
  for (NamedTensor& tensor : state) places.emplace(tensor.name, &tensor);
  for (int i = 0; i < work.written_handles; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors tensors, work.inputs.pin(i).tensors());
    for (const NamedTensor& given : tensors) {
      auto place = places.find(given.name);
      if (place == places.end()) place = places.find(OptimizerSlotName(given.name));
      if (place == places.end()) {
        return Error(absl::StatusCode::kNotFound, "PARAMETER_NOT_FOUND",
                     "the pipeline has no such parameter, or it is given twice, got " + Shortened(given.name))
            .With("field", "handles")
            .With("value", Shortened(given.name))
            .With("pipeline", options_.name);
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
      places.erase(place);
    }
  }
  if (!places.empty()) {  // what was not given stays; of a broken pipeline all must be given
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors kept, pipeline_->ExportState(true));
    for (const NamedTensor& tensor : kept) {
      if (const auto place = places.find(tensor.name); place != places.end()) place->second->tensor = tensor.tensor;
    }
  }
  PENSTOCK_RETURN_IF_ERROR(pipeline_->ImportState(state, work.written_step.value_or(pipeline_->step())));
  pipeline_->DiscardGradients();  // of the weights that are gone
  Executed executed;
  executed.run.step = pipeline_->step();
  executed.checkpoint = CheckpointInfo{};
  executed.replaced_state = true;
  return executed;
}

void ServedPipeline::SettleExecuted(const WorkPointer& work, Executed executed, const std::string& token,
                                    const std::vector<HandleId>& stale_graphs) {
  EndPlace(*work);
  for (const HandleId& id : stale_graphs) {
    options_.handles->Invalidate(
        id, Error(absl::StatusCode::kFailedPrecondition, "GRAPH_STALE", "the weights have changed since this forward"));
  }
  if (work->method == WorkMethod::kBackward && !work->retain_graph) {
    options_.handles->Invalidate(
        work->inputs.pin(work->graph_pin).name().id,
        Error(absl::StatusCode::kFailedPrecondition, "GRAPH_CONSUMED", "a Backward has used up this graph"));
  }
  const Accepted& accepted = work->accepted;
  if (accepted.outputs.has_value()) FulfilValues(accepted.outputs->id, std::exchange(executed.run.outputs, {}));
  if (accepted.graph.has_value()) options_.handles->Fulfil(accepted.graph->id, std::move(executed.graph));
  if (work->method == WorkMethod::kSaveCheckpoint && options_.metrics != nullptr) {
    options_.metrics->checkpoint_bytes.Set(static_cast<double>(executed.checkpoint->bytes));
  }
  if (work->join != nullptr) {
    AnswerState(work, StateAnswer{*executed.checkpoint, executed.run.step, token, accepted.sequence});
  }
  if (accepted.outcome.has_value()) {
    options_.handles->Fulfil(accepted.outcome->id, CallOutcome{std::move(executed.run), accepted.sequence, token});
  }
}

// Lets the stages know when the last graph is gone, by whatever way: consumed, released, expired.
std::shared_ptr<Graph> ServedPipeline::Watched(std::shared_ptr<Graph> graph) {
  graphs_alive_->fetch_add(1);
  Graph* const pointer = graph.get();
  return std::shared_ptr<Graph>(pointer, [graph = std::move(graph), alive = graphs_alive_, host = weak_from_this(),
                                          timers = options_.timers, clock = options_.clock](Graph*) mutable {
    graph.reset();
    if (alive->fetch_sub(1) != 1) return;
    // On the timers' thread: the last reference may be dropped under any lock.
    timers->Add(clock->NowNanos(), [host] {
      if (const auto self = host.lock()) {
        absl::MutexLock lock(&self->mu_);
        self->idle_reason_stale_ = true;
      }
    });
  });
}

void ServedPipeline::UpdateIdleReason() {
  bool waits_for_client = graphs_alive_->load() > 0;
  {
    absl::MutexLock lock(&mu_);
    idle_reason_stale_ = false;
    waits_for_client |= training_.accumulating();
  }
  pipeline_->SetIdleReason(waits_for_client ? Pipeline::IdleReason::kWaitClient : Pipeline::IdleReason::kNoWork);
}

absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> ServedPipeline::TakeSnapshot(const SnapshotRequest& request) {
  int64_t version = 0;
  {
    absl::MutexLock lock(&mu_);
    version = weights_version_;
  }
  // A copy of an earlier step may still be read, but nothing is served of a pipeline between two steps.
  if (absl::Status broken = pipeline_->health(); !broken.ok()) {
    return WithValue(std::move(broken), "pipeline", options_.name);
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::shared_ptr<const ParameterSnapshot> all,
      snapshots_made_.Take(version, request.with_optimizer, [&]() -> absl::StatusOr<ParameterSnapshot> {
        PENSTOCK_ASSIGN_OR_RETURN(NamedTensors state, pipeline_->ExportState(request.with_optimizer));
        return ParameterSnapshot{.step = pipeline_->step(), .tensors = std::move(state)};
      }));
  if (request.names.empty()) return all;
  // Keeps the whole copy, so that it is counted as long as a part of it is read.
  std::shared_ptr<ParameterSnapshot> chosen(new ParameterSnapshot{.step = all->step},
                                            [all](const ParameterSnapshot* part) { delete part; });
  const auto find = [&](const std::string& name) {
    return std::find_if(all->tensors.begin(), all->tensors.end(),
                        [&](const NamedTensor& tensor) { return tensor.name == name; });
  };
  for (const std::string& name : request.names) {
    auto found = find(name);
    if (found == all->tensors.end()) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string alias, FromPartitionName(pipeline_->plan(), name));
      found = find(alias);
    }
    if (found == all->tensors.end()) {
      return Error(absl::StatusCode::kNotFound, "PARAMETER_NOT_FOUND",
                   "the pipeline has no such parameter, got " + Shortened(name))
          .With("field", "names")
          .With("value", Shortened(name));
    }
    chosen->tensors.push_back(*found);
  }
  return std::shared_ptr<const ParameterSnapshot>(std::move(chosen));
}

void ServedPipeline::CountRun(const Work& work, const absl::Status& status, const RunOutcome* run) {
  if (work.method == WorkMethod::kSaveCheckpoint || work.method == WorkMethod::kRestoreCheckpoint) {
    const bool save = work.method == WorkMethod::kSaveCheckpoint;
    Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarning,
        status.ok() ? (save ? "checkpoint saved" : "checkpoint restored")
                    : (save ? "checkpoint not saved" : "checkpoint not restored"),
        {{"pipeline", options_.name},
         {"checkpoint", work.checkpoint_id.empty() ? absl::StrCat("step-", pipeline_->step()) : work.checkpoint_id},
         {"step", std::to_string(pipeline_->step())},
         {"reason", ReasonOf(status)}});
    if (options_.metrics != nullptr) {
      options_.metrics->CheckpointEnded(save ? CheckpointOperation::kSave : CheckpointOperation::kRestore, status.ok(),
                                        options_.clock->NowNanos() - work.accepted_nanos);
    }
  }
  if (work.method == WorkMethod::kDeleteCheckpoint && status.ok()) {
    LogInfo("checkpoint deleted", {{"pipeline", options_.name}, {"checkpoint", work.checkpoint_id}});
  }
  if (options_.metrics == nullptr) return;
  PipelineMetrics& metrics = *options_.metrics;
  if (const auto mode = work.batch_mode()) {
    const BatchOutcome outcome = status.ok()
                                     ? BatchOutcome::kOk
                                     : (absl::IsCancelled(status) ? BatchOutcome::kCancelled : BatchOutcome::kFailed);
    const int64_t samples = run == nullptr ? 0 : run->rows;
    metrics.BatchEnded(*mode, outcome, samples, options_.clock->NowNanos() - work.accepted_nanos);
  }
  if (run == nullptr || !work.training.has_value()) return;
  metrics.step_number.Set(static_cast<double>(run->step));
  if (run->loss.has_value()) metrics.loss.Set(*run->loss);
  const bool stepped = work.training == TrainingCall::kApply || work.training == TrainingCall::kTrainStep;
  if (stepped && run->applied == false) {
    const bool loss = run->loss.has_value() && !std::isfinite(*run->loss);
    metrics.nonfinite_steps[loss ? NonfiniteKind::kLoss : NonfiniteKind::kGradient].Add();
  }
}

}  // namespace penstock
