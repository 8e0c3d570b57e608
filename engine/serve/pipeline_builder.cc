#include "engine/serve/pipeline_builder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/freed_memory.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/journal/journal_paths.h"
#include "engine/observe/metrics_registry.h"
#include "engine/observe/trace_memory.h"
#include "engine/plan/planning.h"
#include "engine/serve/batching_check.h"
#include "engine/serve/open_training.h"
#include "engine/serve/pipeline_metrics.h"
#include "engine/serve/saved_state.h"

namespace penstock {

absl::Status PipelineBuilder::Load(PipelineSpec* spec, const std::string& kept) const {
  return options_.factory.load ? options_.factory.load(&spec->model, kept) : absl::OkStatus();
}

Pipeline::Options PipelineBuilder::EngineOptions(bool rehearse, Planning* planning) const {
  Pipeline::Options engine;
  engine.devices = options_.devices;
  engine.group = options_.group;
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

std::string PipelineBuilder::JournalFolder(const std::string& life) const {
  return options_.journal == nullptr || life.empty() ? "" : absl::StrCat(options_.journal->folder, "/", life);
}

// The newest checkpoint of the life that a replay can go on from. One that is damaged has another before it, as long as
// the journal has the calls between.
absl::StatusOr<std::optional<LoadedCheckpoint>> PipelineBuilder::FindBase(const std::string& name,
                                                                          const std::string& life,
                                                                          int64_t cut_sequence) const {
  const std::shared_ptr<CheckpointFolder> folder = options_.checkpoints->FindFolder(name);
  std::vector<CheckpointInfo> found;
  if (folder != nullptr) found = folder->List();
  std::erase_if(found, [&](const CheckpointInfo& info) {
    return info.place.life != life || !info.place.whole || info.place.sequence < cut_sequence;
  });
  // Of equal ones the automatic one is the later: it has the specification of an update between them.
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return std::pair(a.place.sequence, a.place.automatic) > std::pair(b.place.sequence, b.place.automatic);
  });
  absl::Status damage;
  for (const CheckpointInfo& info : found) {
    absl::StatusOr<LoadedCheckpoint> loaded = folder->Load(info.id);
    if (loaded.ok()) return std::optional<LoadedCheckpoint>(*std::move(loaded));
    LogError("a checkpoint of the journal can't be read",
             {{"pipeline", name}, {"checkpoint", info.id}, {"error", std::string(loaded.status().message())}});
    // One that can be read another time would bring calls along that have the numbers of those made meanwhile.
    if (!absl::IsDataLoss(loaded.status())) return loaded.status();
    if (damage.ok()) damage = loaded.status();
  }
  if (!damage.ok()) return damage;
  if (cut_sequence == 0) return std::nullopt;
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_CORRUPT",
               absl::StrCat("the journal begins behind call ", cut_sequence,
                            ", and no checkpoint that has its effect is "
                            "there"));
}

// Brings what was accumulated into a pipeline that has the checkpoint's weights. Nothing: only whole steps were there.
absl::StatusOr<std::optional<OpenTraining>> PipelineBuilder::ContinueTraining(LoadedCheckpoint base,
                                                                              Pipeline& pipeline) {
  if (base.training.empty()) return std::optional<OpenTraining>();
  absl::StatusOr<OpenTraining> training = ParseOpenTraining(base.training);
  if (!training.ok()) return CheckpointCorrupt(base.info.id, std::string(training.status().message()));
  training->accumulation.tensors = std::move(base.training_tensors);
  PENSTOCK_RETURN_IF_ERROR(pipeline.ImportAccumulation(training->accumulation));
  training->accumulation.tensors.clear();
  if (!training->accumulation.none()) {
    LogInfo("an accumulation goes on from its checkpoint",
            {{"pipeline", base.info.pipeline},
             {"checkpoint", base.info.id},
             {"micro_batches", std::to_string(training->accumulation.next_micro_batch)}});
  }
  return std::optional<OpenTraining>(*std::move(training));
}

absl::Status PipelineBuilder::OpenJournal(const std::string& name, const PipelineLife& life, PipelineRecipe* recipe,
                                          ServedPipeline::Durable* durable,
                                          std::optional<LoadedCheckpoint>* base) const {
  if (options_.journal == nullptr || life.id.empty()) return absl::OkStatus();
  const JournalSetup& setup = *options_.journal;
  PENSTOCK_ASSIGN_OR_RETURN(durable->journal,
                            PipelineJournal::Open(JournalFolder(life.id), options_.clock, setup.options));
  durable->records = setup.records;
  durable->wanted = life.wanted;
  if (!life.again) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(*base, FindBase(name, life.id, durable->journal->cut_sequence()));
  if (!base->has_value()) return absl::OkStatus();
  const CheckpointInfo& info = (*base)->info;
  durable->from = info.place;
  if (info.specification == nullptr) return absl::OkStatus();
  // With the settings of the optimizer as they were then.
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRecipe kept, setup.recipe(*info.specification));
  kept.caller = std::move(recipe->caller);
  *recipe = std::move(kept);
  return absl::OkStatus();
}

absl::StatusOr<MadeEngine> PipelineBuilder::MakeEngine(const std::string& name, const PipelineLife& life,
                                                       PipelineRecipe* recipe, const MayRehearse& may_rehearse,
                                                       Planning* planning) const {
  PipelineSpec& spec = recipe->spec;
  const std::string folder = JournalFolder(life.id);
  PENSTOCK_RETURN_IF_ERROR(Load(&spec, folder.empty() ? "" : JournalPaths(folder).program));
  MadeEngine made;
  made.batching = spec.batching;
  Pipeline::Options engine = EngineOptions(may_rehearse(), planning);
  engine.name = name;
  if (life.lost) engine.on_rank_lost = [lost = life.lost](Rank, const absl::Status& why) { lost(why); };
  struct Held {  // goes where the creation fails
    std::shared_ptr<MemoryReservation> stages;
    MemoryReservation traces;
  };
  auto held = std::make_shared<Held>();
  made.held = held;
  PENSTOCK_ASSIGN_OR_RETURN(held->stages, HoldMemory({MemoryClass::kPipelines, recipe->caller, name}, &engine));
  absl::Status traces;
  if (options_.metrics != nullptr && life.counted) {
    engine.metrics = [&](const Plan& plan) {
      made.metrics = MakePipelineMetrics(*options_.metrics, name, plan);
      // A ring takes a page when it first writes there.
      auto rings =
          TakeMemory(options_.memory, {MemoryClass::kTraces, recipe->caller, name}, TraceRingBytes(*made.metrics));
      traces = rings.status();
      if (rings.ok()) held->traces = *std::move(rings);
      return made.metrics;
    };
  }
  absl::StatusOr<std::unique_ptr<Pipeline>> pipeline = options_.factory.create(spec, std::move(engine));
  spec.model.loaded_program = nullptr;  // the layers have its tensors
  if (!pipeline.ok()) return pipeline.status();
  made.pipeline = *std::move(pipeline);
  PENSTOCK_RETURN_IF_ERROR(traces);
  if (spec.batching.has_value() && !life.again) PENSTOCK_RETURN_IF_ERROR(CheckBatching(made.pipeline.get(), *planning));
  if (recipe->describe) {
    made.describe = [describe = recipe->describe, model = spec.model, plan = made.pipeline->plan()](
                        const Pipeline& now) { return describe(plan, model, now.optimizer()); };
  }
  return made;
}

absl::StatusOr<MadeEngine> PipelineBuilder::BuildNext(const std::string& name, const std::string& life,
                                                      PipelineRecipe* recipe, const MayRehearse& may_rehearse,
                                                      Planning* planning) const {
  return MakeNext(name, {.id = life}, recipe, may_rehearse, planning);
}

absl::StatusOr<MadeEngine> PipelineBuilder::MakeNext(const std::string& name, const PipelineLife& life,
                                                     PipelineRecipe* recipe, const MayRehearse& may_rehearse,
                                                     Planning* planning) const {
  planning->Enter(PlanPhase::kLoading, 1);
  absl::Cleanup tidy = [] { ReturnFreedMemory(); };  // a part of it may have stood
  const std::string digest = recipe->spec.model.program_digest;
  PENSTOCK_ASSIGN_OR_RETURN(MadeEngine next, MakeEngine(name, life, recipe, may_rehearse, planning));
  if (recipe->spec.model.program_digest != digest) {
    return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
                 absl::StrCat("the exported program is another one by now: the pipeline's has the digest ", digest,
                              ", the file ", recipe->spec.model.program_digest));
  }
  std::move(tidy).Cancel();
  return next;
}

absl::StatusOr<MadeEngine> PipelineBuilder::BuildPublished(const std::string& name, const std::string& life,
                                                           PipelineRecipe recipe, const std::string& checkpoint,
                                                           Planning* planning) const {
  recipe.spec.optimizer = {.name = "sgd"};  // which keeps no state
  const PipelineLife beside{.id = life, .again = true, .counted = false};
  PENSTOCK_ASSIGN_OR_RETURN(MadeEngine made, MakeNext(
                                                 name, beside, &recipe, [] { return false; }, planning));
  std::string digest = recipe.spec_digest;
  if (!recipe.spec.model.program_digest.empty()) absl::StrAppend(&digest, " ", recipe.spec.model.program_digest);
  PENSTOCK_RETURN_IF_ERROR(
      Restore({name, checkpoint}, digest, {MemoryClass::kSnapshots, recipe.caller, name}, *made.pipeline));
  return made;
}

void PipelineBuilder::PublishAgain(const PipelineLife& life, const PipelineRecipe& recipe, ServedPipeline& served,
                                   Planning* planning) const {
  Publication published = life.published;
  absl::StatusOr<MadeEngine> made = Guarded("published weights", [&] {
    return BuildPublished(served.name(), life.id, recipe, published.checkpoint, planning);
  });
  if (made.ok()) {
    published.step = (*made).pipeline->step();
  } else {
    published.error = WithValue(made.status(), "pipeline", served.name());
    LogError("what was published can't be loaded: inference of it fails until something else is published",
             {{"pipeline", served.name()},
              {"checkpoint", published.checkpoint},
              {"reason", ReasonOf(made.status())},
              {"error", std::string(made.status().message())}});
  }
  CheckpointPins::Hold pin = served.PinCheckpoint(published.checkpoint).value_or(nullptr);
  served.Publish(
      PublishedWeights::Prepare(std::move(published), made.ok() ? *std::move(made) : MadeEngine(), std::move(pin)));
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> PipelineBuilder::Build(const std::string& name,
                                                                       const PipelineLife& life, PipelineRecipe* recipe,
                                                                       const MayRehearse& may_rehearse,
                                                                       Planning* planning) const {
  planning->Enter(PlanPhase::kLoading, 1);
  ServedPipeline::Durable durable;
  std::optional<LoadedCheckpoint> base;
  PENSTOCK_RETURN_IF_ERROR(OpenJournal(name, life, recipe, &durable, &base));
  std::shared_ptr<PipelineMetrics> metrics;
  absl::Cleanup forget = [&] {  // whatever fails or throws below
    if (metrics != nullptr) options_.metrics->RemovePipeline(*metrics);
    ReturnFreedMemory();  // a part of it may have stood
  };
  PENSTOCK_ASSIGN_OR_RETURN(MadeEngine engine, MakeEngine(name, life, recipe, may_rehearse, planning));
  metrics = engine.metrics;
  if (metrics != nullptr) options_.metrics->AddPipeline(metrics);
  const PipelineSpec& spec = recipe->spec;
  Pipeline& pipeline = *engine.pipeline;
  CheckpointOrigin origin{.spec_digest = recipe->spec_digest,
                          .describe = std::move(engine.describe),
                          .life = durable.journal == nullptr ? "" : life.id};
  if (!spec.model.program_digest.empty()) absl::StrAppend(&origin.spec_digest, " ", spec.model.program_digest);
  if (base.has_value()) {
    // Not before the stages: what has stood before must find its room again.
    const MemoryReservation copy =
        TakeMemoryAnyway(options_.memory, {.kind = MemoryClass::kSnapshots, .pipeline = name}, base->info.bytes);
    PENSTOCK_RETURN_IF_ERROR(CheckState(base->state, pipeline.StateShapes()));
    pipeline.SetNextState(base->info.place.version);
    PENSTOCK_RETURN_IF_ERROR(pipeline.ImportState(base->state, base->info.step));
    PENSTOCK_ASSIGN_OR_RETURN(durable.training, ContinueTraining(*std::move(base), pipeline));
    base.reset();
  } else if (recipe->from.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(
        Restore(*recipe->from, origin.spec_digest, {MemoryClass::kSnapshots, recipe->caller, name}, pipeline));
    if (recipe->from->pipeline == name) origin.restored_from = recipe->from->id;
  }
  // A pipeline that is refused leaves no folder.
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<CheckpointFolder> checkpoints,
                            options_.checkpoints->FolderOf(name, recipe->caller));
  ServedPipeline::Options hosting = options_.hosting;
  hosting.name = name;
  hosting.origin = std::move(origin);
  hosting.batching = engine.batching;
  hosting.handles = options_.handles;
  hosting.timers = options_.timers;
  hosting.clock = options_.clock;
  hosting.metrics = metrics;
  hosting.held = std::move(engine.held);
  hosting.on_lost = life.lost;
  hosting.published = life.published;
  hosting.on_unused_weights = life.unused_weights;
  hosting.on_gone = life.gone;
  hosting.memory = options_.memory;
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<ServedPipeline> served,
                            ServedPipeline::Start(std::move(engine.pipeline), std::move(checkpoints),
                                                  std::move(hosting), std::move(durable)));
  if (life.published.any()) PublishAgain(life, *recipe, *served, planning);
  // What it was made from may be deleted before its first call.
  if (recipe->from.has_value() && !life.again) PENSTOCK_RETURN_IF_ERROR(served->SaveForJournal());
  std::move(forget).Cancel();
  return served;
}

template <typename Found, typename Look>
absl::StatusOr<Found> PipelineBuilder::Trial(const std::string& caller, PipelineSpec spec,
                                             const MayRehearse& may_rehearse, Planning* planning,
                                             const Look& look) const {
  PENSTOCK_RETURN_IF_ERROR(Load(&spec, /*kept=*/""));
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
