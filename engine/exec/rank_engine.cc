#include "engine/exec/rank_engine.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"
#include "engine/plan/planner.h"
#include "engine/transport/local_transport.h"

namespace penstock {
namespace {

std::vector<DeviceStreams*> StreamsOfStages(const std::vector<std::unique_ptr<Stage>>& stages, const Plan& plan) {
  std::vector<DeviceStreams*> streams(plan.stages.size());
  for (const auto& stage : stages) streams[stage->index()] = &StreamsOf(stage->device());
  return streams;
}

}  // namespace

RankEngine::RankEngine(Parts parts)
    : plan_(*parts.plan),
      workers_(std::move(parts.workers)),
      stages_(std::move(parts.stages)),
      metrics_(parts.metrics),
      clock_(parts.clock),
      before_action_(std::move(parts.before_action)),
      fault_point_(std::move(parts.fault_point)),
      watch_passes_(std::move(parts.watch_passes)),
      schedules_(BuildRequestOf(plan_), std::move(parts.edit_lists)),
      lane_at_(workers_.size()),
      on_value_(std::move(parts.on_value)),
      filling_(parts.filling, plan_, parts.foresight) {
  for (int lane = 0; lane < static_cast<int>(workers_.size()); ++lane) {
    if (workers_[lane] != nullptr) AddLane(lane);
  }
  std::vector<DeviceStreams*> streams = StreamsOfStages(stages_, plan_);
  const auto arrival = [this](const MessageKey& key) { OnArrival(key); };
  transport_ = parts.transport ? parts.transport(std::move(streams), arrival)
                               : std::make_unique<LocalTransport>(std::move(streams), arrival);
  for (const auto& lane : lanes_) lane->transport = transport_.get();
}

bool RankEngine::HasStage(int stage) const { return workers_[plan_.stages[stage].lane] != nullptr; }

void RankEngine::OnArrival(const MessageKey& key) {
  if (IsToLeader(key.kind)) return on_value_ ? on_value_(key) : void();
  const int lane = plan_.stages[key.stage].lane;
  lane_at_[lane]->state.Arrived(key, workers_[lane]->busy());
  workers_[lane]->Wake();
}

void RankEngine::AddLane(int index) {
  std::vector<Stage*> chunks;
  for (const auto& stage : stages_) {
    if (plan_.stages[stage->index()].lane == index) chunks.push_back(stage.get());
  }
  lanes_.push_back(std::make_unique<Lane>(index, std::move(chunks), &metrics_->lane(index),
                                          &StreamsOf(workers_[index]->device()), clock_));
  lane_at_[index] = lanes_.back().get();
  CountHeldBytes(*lanes_.back());
}

// Tells a new lane what its metrics need of the plan, and counts what it holds from now on.
void RankEngine::CountHeldBytes(Lane& lane) const {
  for (const StagePlan& stage : plan_.stages) lane.lane_of.push_back(stage.lane);
  const auto rows = static_cast<double>(std::max<int64_t>(plan_.micro_batch_rows, 1));
  StageBytesHeld held;
  for (const Stage* stage : lane.stages) {
    lane.stash_bytes_of_row.push_back(static_cast<double>(plan_.stages[stage->index()].stash_bytes) / rows);
    const StageBytesHeld bytes = stage->BytesHeld();
    held.weights += bytes.weights;
    held.buffers += bytes.buffers;
    held.optimizer += bytes.optimizer;
  }
  MemoryCells& memory = *lane.metrics->memory;
  memory[MemoryKind::kWeights].Set(static_cast<double>(held.weights));
  memory[MemoryKind::kBuffers].Set(static_cast<double>(held.buffers));
  memory[MemoryKind::kOptimizer].Set(static_cast<double>(held.optimizer));
  lane.CountGradients();
}

// --- Runs.

std::shared_ptr<Run> RankEngine::Prepare(RunSpec spec, ListsOfRun lists, std::shared_ptr<RunCoordinator> coordinator) {
  auto run = std::make_shared<Run>();
  run->spec = std::move(spec);
  run->lists = std::move(lists);
  run->coordinator = std::move(coordinator);
  for (const auto& lane : lanes_) run->devices.push_back(lane->streams);
  run->filling = &filling_;
  run->passes.resize(plan_.stages.size());
  for (auto& passes : run->passes) passes.resize(run->micro_batches());
  run->inputs.resize(plan_.stages.size());
  run->outputs.resize(plan_.stages.size());
  run->input_gradient_values.resize(plan_.stages.size());
  for (auto& outputs : run->outputs) outputs.resize(run->micro_batches());
  for (auto& gradients : run->input_gradient_values) gradients.resize(run->micro_batches());
  run->made_losses.resize(run->micro_batches());
  run->metric_sums.resize(run->micro_batches());
  if (run->spec.inference) {
    run->arrivals = std::make_unique<ExpectedArrivals>(static_cast<int>(plan_.stages.size()), run->micro_batches());
  } else {
    run->before_action = before_action_;
    run->fault_point = fault_point_;
    run->watch_passes = watch_passes_;
  }
  return run;
}

void RankEngine::Start(const std::shared_ptr<Run>& run) {
  transport_->Open(run->spec.id);
  absl::Cleanup close = [&] { transport_->Close(run->spec.id); };
  std::vector<DeviceWorker::NewExecutors> made(lanes_.size());  // all of them before the first one runs
  for (size_t i = 0; i < lanes_.size(); ++i) made[i].push_back(std::make_unique<StageExecutor>(run, lanes_[i].get()));
  for (size_t i = 0; i < lanes_.size(); ++i) workers_[lanes_[i]->index]->Add(std::move(made[i]));
  std::move(close).Cancel();
}

void RankEngine::End(const Run& run) {
  transport_->Close(run.spec.id);
  if (run.spec.inference) return;
  for (const auto& lane : lanes_) lane->state.CloseStep();
}

void RankEngine::WakeAll() {
  for (DeviceWorker* worker : workers_) {
    if (worker != nullptr) worker->Wake();
  }
}

// --- Stages.

void RankEngine::EndContribution(bool keep, MicroBatchIndex first) {
  for (const auto& stage : stages_) stage->EndContribution(keep, first);
  for (const auto& lane : lanes_) lane->CountGradients();
}

void RankEngine::DiscardGradients() {
  for (const auto& stage : stages_) {
    stage->EndContribution(/*keep=*/true, kNoMicroBatch);
    stage->ClearGradients();
    stage->DiscardStatistics(MicroBatchIndex(0));
  }
  for (const auto& lane : lanes_) lane->CountGradients();
}

void RankEngine::RestoreTiedGradients(const TiedGradients& ties) {
  for (const auto& stage : stages_) stage->RestoreTiedGradients(ties);
}

absl::Status RankEngine::OnEachStage(const std::function<void(Stage&)>& body) const {
  for (const auto& lane : lanes_) {
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
      lane->streams->RunOn(StreamKind::kCompute, [&] {
        for (Stage* stage : lane->stages) body(*stage);
      });
    }));
  }
  return absl::OkStatus();
}

absl::Status RankEngine::Undo() {
  return OnEachStage([&](Stage& stage) {
    if (fault_point_) fault_point_(FaultPoint::kUndo, stage.index());
    stage.Undo();
    StreamsOf(stage.device()).Synchronize();  // copies that fail behind the host have undone nothing
  });
}

StatesOfStages RankEngine::States(bool with_optimizer) const {
  StatesOfStages states;
  for (const auto& stage : stages_) {
    states.push_back({.stage = stage->index(), .saved = stage->SavedTensors()});
    if (!with_optimizer) continue;
    for (const NamedTensor& slot : stage->SavedOptimizerState()) {
      states.back().optimizer.push_back({"optimizer/" + slot.name, slot.tensor});
    }
  }
  return states;
}

NamedTensors RankEngine::StateViews(bool with_optimizer) const { return InModelOrder(States(with_optimizer)); }

absl::Status RankEngine::TakeState(const NamedTensors& state) {
  const auto mismatch = [](const std::string& name, const char* problem) {
    return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH", absl::StrCat(name, ": ", problem))
        .With("field", name);
  };
  std::unordered_map<std::string, const at::Tensor*> given;
  for (const NamedTensor& entry : state) given.emplace(entry.name, &entry.tensor);
  NamedTensors views = StateViews(/*with_optimizer=*/true);
  for (NamedTensor& view : ReplicaViews()) views.push_back(std::move(view));
  std::vector<const at::Tensor*> sources;
  for (const NamedTensor& view : views) {
    const auto found = given.find(view.name);
    if (found == given.end()) return mismatch(view.name, "is missing");
    const at::Tensor& source = *sources.emplace_back(found->second);
    if (source.sizes() != view.tensor.sizes() || source.scalar_type() != view.tensor.scalar_type()) {
      return mismatch(view.name, "has another shape or type");
    }
  }
  return RunTorch([&] {
    const at::NoGradGuard no_graph;
    for (size_t i = 0; i < views.size(); ++i) views[i].tensor.copy_(*sources[i]);
  });
}

NamedTensors RankEngine::ReplicaViews() const {
  NamedTensors views;
  for (const auto& stage : stages_) {
    for (NamedTensor& tensor : stage->Replicas()) views.push_back(std::move(tensor));
    for (const NamedTensor& slot : stage->OptimizerReplicas()) {
      views.push_back({"optimizer/" + slot.name, slot.tensor});
    }
  }
  return views;
}

absl::Status RankEngine::UpdateOptimizer(const OptimizerSpec& spec) {
  std::vector<std::unique_ptr<Optimizer>> changed;
  for (const auto& stage : stages_) {
    PENSTOCK_ASSIGN_OR_RETURN(changed.emplace_back(), stage->OptimizerWith(spec));
  }
  for (size_t i = 0; i < stages_.size(); ++i) stages_[i]->UseOptimizer(std::move(changed[i]));
  FreezeGroups(spec.groups);
  return absl::OkStatus();
}

void RankEngine::FreezeGroups(const std::vector<ParameterGroup>& groups) {
  for (const auto& stage : stages_) stage->FreezeGroups(groups);
}

void RankEngine::ShareTiedGradients(TiedGradients& places) const {
  for (const auto& stage : stages_) stage->ShareTiedGradients(places);
}

StatesOfStages RankEngine::GradientsOfStages(const TiedGradients& ties) const {
  StatesOfStages gradients;
  for (const auto& stage : stages_) gradients.push_back({.stage = stage->index(), .saved = stage->Gradients(ties)});
  return gradients;
}

FactsOfRank RankEngine::Facts() const {
  FactsOfRank facts{.shapes = States(/*with_optimizer=*/true), .parameters = {}, .parameter_count = parameter_count()};
  for (StateOfStage& state : facts.shapes) {
    state.saved = ShapesOf(state.saved);
    state.optimizer = ShapesOf(state.optimizer);
  }
  for (const auto& stage : stages_) {
    for (const NamedTensor& parameter : stage->LearnedParameters()) {
      facts.parameters[stage->index()].push_back(parameter.name);
    }
  }
  return facts;
}

absl::StatusOr<NamedTensors> RankEngine::Accumulated() const {
  NamedTensors accumulated;
  PENSTOCK_RETURN_IF_ERROR(OnEachStage([&](Stage& stage) {
    for (NamedTensor& tensor : stage.Accumulated()) accumulated.push_back(std::move(tensor));
  }));
  return accumulated;
}

absl::StatusOr<int64_t> RankEngine::TakeAccumulated(const NamedTensors& accumulated) {
  PENSTOCK_RETURN_IF_ERROR(OnEachStage([&](Stage& stage) { stage.SetAccumulated(accumulated); }));
  for (const auto& lane : lanes_) lane->CountGradients();
  PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors taken, Accumulated());
  return static_cast<int64_t>(taken.size());
}

int64_t RankEngine::parameter_count() const {
  int64_t count = 0;
  for (const auto& stage : stages_) {
    for (const NamedTensor& parameter : stage->LearnedParameters()) count += parameter.tensor.numel();
  }
  return count;
}

void RankEngine::SetIdle(StageState state) const {
  for (const auto& lane : lanes_) lane->state.SetIdle(state);
}

}  // namespace penstock
