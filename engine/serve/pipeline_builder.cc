#include "engine/serve/pipeline_builder.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/freed_memory.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/observe/metrics_registry.h"
#include "engine/observe/trace_memory.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_metrics.h"
#include "engine/serve/saved_state.h"

namespace penstock {

absl::Status PipelineBuilder::Load(PipelineSpec* spec) const {
  return options_.factory.load ? options_.factory.load(&spec->model) : absl::OkStatus();
}

Pipeline::Options PipelineBuilder::EngineOptions(bool rehearse, Planning* planning) const {
  Pipeline::Options engine;
  engine.devices = options_.devices;
  engine.clock = options_.clock;
  engine.rehearse = rehearse;
  engine.profile.planning = planning;
  return engine;
}

absl::StatusOr<std::shared_ptr<MemoryReservation>> PipelineBuilder::HoldMemory(MemoryHolder holder,
                                                                               Pipeline::Options* engine) const {
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation taken, TakeMemory(options_.memory, std::move(holder), 0));
  auto held = std::make_shared<MemoryReservation>(std::move(taken));
  engine->claim_memory = [held = held.get()](int64_t bytes) { return held->Resize(bytes); };
  engine->profile.claim_memory = engine->claim_memory;
  return held;
}

absl::Status PipelineBuilder::Restore(const CheckpointSource& source, const std::string& spec_digest,
                                      const MemoryHolder& holder, Pipeline& pipeline) const {
  const absl::Status restored = [&]() -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const CheckpointInfo info, options_.checkpoints->Find(source.pipeline, source.id));
    PENSTOCK_RETURN_IF_ERROR(CheckProgram(info, spec_digest));
    // Of the file and of its tensors.
    PENSTOCK_ASSIGN_OR_RETURN(const MemoryReservation held, TakeMemory(options_.memory, holder, 2 * info.bytes));
    const std::shared_ptr<CheckpointFolder> folder = options_.checkpoints->FindFolder(source.pipeline);
    PENSTOCK_ASSIGN_OR_RETURN(LoadedCheckpoint loaded, folder->Load(source.id));
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors state, FitState(std::move(loaded.state), pipeline));
    return pipeline.ImportState(state, loaded.info.step);
  }();
  return restored.ok() ? restored : WithValue(restored, "checkpoint", source.id);
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> PipelineBuilder::Build(const std::string& name, PipelineRecipe* recipe,
                                                                       const MayRehearse& may_rehearse,
                                                                       Planning* planning) const {
  planning->Enter(PlanPhase::kLoading, 1);
  PipelineSpec& spec = recipe->spec;
  PENSTOCK_RETURN_IF_ERROR(Load(&spec));
  std::shared_ptr<PipelineMetrics> metrics;
  Pipeline::Options engine = EngineOptions(may_rehearse(), planning);
  struct Held {  // goes where the creation fails
    std::shared_ptr<MemoryReservation> stages;
    MemoryReservation traces;
  };
  const auto held = std::make_shared<Held>();
  PENSTOCK_ASSIGN_OR_RETURN(held->stages, HoldMemory({MemoryClass::kPipelines, recipe->caller, name}, &engine));
  absl::Status traces;
  if (options_.metrics != nullptr) {
    engine.metrics = [&](const Plan& plan) {
      metrics = AddPipelineMetrics(options_.metrics, name, plan);
      // A ring takes a page when it first writes there.
      auto rings = TakeMemory(options_.memory, {MemoryClass::kTraces, recipe->caller, name}, TraceRingBytes(*metrics));
      traces = rings.status();
      if (rings.ok()) held->traces = *std::move(rings);
      return metrics;
    };
  }
  absl::Cleanup forget = [&] {  // whatever fails or throws below
    if (metrics != nullptr) options_.metrics->RemovePipeline(*metrics);
    ReturnFreedMemory();  // a part of it may have stood
  };
  CheckpointOrigin origin{.spec_digest = recipe->spec_digest};
  if (!spec.model.program_digest.empty()) absl::StrAppend(&origin.spec_digest, " ", spec.model.program_digest);
  absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = options_.factory.create(spec, std::move(engine));
  spec.model.loaded_program = nullptr;  // the layers have its tensors
  if (!pipeline.ok()) return pipeline.status();
  PENSTOCK_RETURN_IF_ERROR(traces);
  if (recipe->from.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(
        Restore(*recipe->from, origin.spec_digest, {MemoryClass::kSnapshots, recipe->caller, name}, **pipeline));
    if (recipe->from->pipeline == name) origin.restored_from = recipe->from->id;
  }
  if (recipe->describe) {
    origin.describe = [describe = recipe->describe, model = spec.model](const Pipeline& made) {
      return describe(made.plan(), model, made.optimizer());
    };
  }
  // A pipeline that is refused leaves no folder.
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<CheckpointFolder> checkpoints,
                            options_.checkpoints->FolderOf(name, recipe->caller));
  ServedPipeline::Options hosting = options_.hosting;
  hosting.name = name;
  hosting.origin = std::move(origin);
  hosting.handles = options_.handles;
  hosting.timers = options_.timers;
  hosting.clock = options_.clock;
  hosting.metrics = metrics;
  hosting.held = held;
  hosting.memory = options_.memory;
  std::shared_ptr<ServedPipeline> served =
      ServedPipeline::Start(*std::move(pipeline), std::move(checkpoints), std::move(hosting));
  std::move(forget).Cancel();
  return served;
}

template <typename Found, typename Look>
absl::StatusOr<Found> PipelineBuilder::Trial(const std::string& caller, PipelineSpec spec,
                                             const MayRehearse& may_rehearse, Planning* planning,
                                             const Look& look) const {
  PENSTOCK_RETURN_IF_ERROR(Load(&spec));
  Pipeline::Options engine = EngineOptions(may_rehearse(), planning);
  PENSTOCK_ASSIGN_OR_RETURN(const auto held, HoldMemory({MemoryClass::kPipelines, caller}, &engine));  // of trials
  return look(spec, engine);
}

absl::StatusOr<Plan> PipelineBuilder::FindPlan(const std::string& caller, PipelineSpec spec,
                                               const MayRehearse& may_rehearse, Planning* planning) const {
  return Trial<Plan>(caller, std::move(spec), may_rehearse, planning, options_.factory.plan);
}

absl::StatusOr<PlanSearch> PipelineBuilder::SearchPlans(const std::string& caller, PipelineSpec spec,
                                                        const MayRehearse& may_rehearse, Planning* planning) const {
  return Trial<PlanSearch>(caller, std::move(spec), may_rehearse, planning, options_.factory.search);
}

}  // namespace penstock
