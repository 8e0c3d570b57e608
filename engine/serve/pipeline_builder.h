#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/exec/pipeline.h"
#include "engine/journal/pipeline_journal.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/plan/plan.h"
#include "engine/plan/search.h"
#include "engine/serve/call_records.h"
#include "engine/serve/made_engine.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

class CheckpointStore;
class DevicePool;
class HandleStore;
class MetricsRegistry;
class PipelineGroup;
class Planning;
class TimerQueue;

// Factory functions: Pipeline::Create, MakePlan and SearchPlans. Tests inject fakes.
struct PipelineFactory {
  std::function<absl::StatusOr<std::unique_ptr<Pipeline>>(const PipelineSpec&, Pipeline::Options)> create;
  std::function<absl::StatusOr<Plan>(const PipelineSpec&, const Pipeline::Options&)> plan;
  std::function<absl::StatusOr<PlanSearch>(const PipelineSpec&, const Pipeline::Options&)> search = {};
  // Reads what the specification only names: its exported program, whose digest it fills in. `kept`: a file that has a
  // copy of the program, or gets one; empty: none. Null: there is nothing to read.
  std::function<absl::Status(ModelSpec*, const std::string& kept)> load = {};
};

// A checkpoint of a pipeline, living or deleted.
struct CheckpointSource {
  std::string pipeline;
  std::string id;
};

// What a pipeline is made from.
struct PipelineRecipe {
  std::string caller = {};  // who makes it; what it takes is charged to this caller
  PipelineSpec spec = {};
  // Goes into its checkpoints, with the digest of the exported program, on which alone they can be restored.
  std::string spec_digest = {};
  // Returns the bytes that checkpoints keep of the specification, with the plan, the digest of the program and the
  // optimizer's settings at that time. Null: they keep none.
  std::function<std::string(const Plan& plan, const ModelSpec& model, const OptimizerSpec& optimizer)> describe = {};
  // Whose weights, step and, where it fits (FitState), optimizer state it starts with; unset: it starts anew.
  std::optional<CheckpointSource> from = {};
  // As it was asked for, where `spec` has more: the plan that was found. For lists; unset: as `spec`.
  std::optional<PipelineSpec> asked = {};
};

// What makes pipelines outlive the daemon's process.
struct JournalSetup {
  std::string folder;  // with a folder for each pipeline's journal, named by its life
  const CallRecords* records = nullptr;
  // The recipe of a pipeline whose specification was kept, as `describe` of its recipe wrote it.
  std::function<absl::StatusOr<PipelineRecipe>(const std::string& specification)> recipe = {};
  PipelineJournal::Options options = {};
};

// Which life of a pipeline's name is made, and whether it is made again.
struct PipelineLife {
  std::string id;  // empty: nothing of it outlives the process
  bool again = false;
  bool counted = true;                // its stages are counted, and their steps traced
  Publication published = {};         // of the life before
  std::function<bool()> wanted = {};  // asked while its calls are made again; null: yes
  // Told that it has lost a rank, perhaps more than once and before it is made, on any thread; must not block. Null:
  // nobody is.
  std::function<void(const absl::Status&)> lost = {};
  // Told that ServedPipeline::DestroyUnusedWeights() has something to do, in the same way.
  std::function<void()> unused_weights = {};
  // Called when all that was made has gone, and its memory with it, on any thread; must not block. Null: nobody is.
  std::function<void()> gone = {};
};

// Makes served pipelines from specifications, and looks for their plans, with what all pipelines of a server share.
//
// Threads:   any; a call takes as long as planning and building take.
// Fails:     INVALID_ARGUMENT for what is wrong with the specification; RESOURCE_EXHAUSTED / HOST_MEMORY where the
//            ledger has no room; whatever the factory fails with. What was reserved for it goes with it.
class PipelineBuilder {
 public:
  // What the pointers name must outlive the builder and all that it has made.
  struct Options {
    PipelineFactory factory;
    DevicePool* devices = nullptr;   // handed to the factory
    PipelineGroup* group = nullptr;  // the same; null: there is one process
    HandleStore* handles = nullptr;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    MetricsRegistry* metrics = nullptr;  // null: counts go nowhere
    CheckpointStore* checkpoints = nullptr;
    MemoryLedger* memory = nullptr;   // null: pipelines take what they need
    JournalSetup* journal = nullptr;  // null: pipelines go with the process
    ServedPipeline::Options hosting;  // limits; the builder fills in the rest
  };

  explicit PipelineBuilder(Options options) : options_(std::move(options)) {}

  const Options& options() const { return options_; }

  // Whether candidates of a plan may run on the devices; asked when the model has been read.
  using MayRehearse = std::function<bool()>;

  // Reads what the specification names, fills in its digest, and makes the pipeline.
  //
  // Fails:     also, of a checkpoint: CHECKPOINT_NOT_FOUND, CHECKPOINT_CORRUPT, MODEL_MISMATCH; of a life that is made
  //            again: as PipelineJournal::Open() and CallReplay.
  absl::StatusOr<std::shared_ptr<ServedPipeline>> Build(const std::string& name, const PipelineLife& life,
                                                        PipelineRecipe* recipe, const MayRehearse& may_rehearse,
                                                        Planning* planning) const;
  // Another engine for a pipeline that stands, beside its own, of the recipe's specification and its digest. It has
  // weights of its own until an UpdateCall brings it the pipeline's, and counts where nobody looks until they are added to
  // the registry. Fails: also FAILED_PRECONDITION / MODEL_MISMATCH for a program that is another one by now.
  absl::StatusOr<MadeEngine> BuildNext(const std::string& name, const std::string& life, PipelineRecipe* recipe,
                                       const MayRehearse& may_rehearse, Planning* planning) const;
  // The same with the weights of a checkpoint of the pipeline's own, to infer with: without state of the optimizer, and
  // without counts and traces. Fails: also as Restore().
  absl::StatusOr<MadeEngine> BuildPublished(const std::string& name, const std::string& life, PipelineRecipe recipe,
                                            const std::string& checkpoint, Planning* planning) const;
  // The folder of a life's journal. Without a journal, empty.
  std::string JournalFolder(const std::string& life) const;

  // The plan that Build() would choose, and the plans that it would choose from, best first. `caller` holds what trials
  // place.
  absl::StatusOr<Plan> FindPlan(const std::string& caller, PipelineSpec spec, const MayRehearse& may_rehearse,
                                Planning* planning) const;
  absl::StatusOr<PlanSearch> SearchPlans(const std::string& caller, PipelineSpec spec, const MayRehearse& may_rehearse,
                                         Planning* planning) const;

 private:
  absl::Status Load(PipelineSpec* spec, const std::string& kept) const;
  // Reads the program, fills in its digest, and makes the stages, with what counts and traces them.
  absl::StatusOr<MadeEngine> MakeEngine(const std::string& name, const PipelineLife& life, PipelineRecipe* recipe,
                                        const MayRehearse& may_rehearse, Planning* planning) const;
  absl::StatusOr<MadeEngine> MakeNext(const std::string& name, const PipelineLife& life, PipelineRecipe* recipe,
                                      const MayRehearse& may_rehearse, Planning* planning) const;
  // Brings what was published back, or says with it why that is not possible.
  void PublishAgain(const PipelineLife& life, const PipelineRecipe& recipe, ServedPipeline& served,
                    Planning* planning) const;
  // Opens the journal of a life; of one that is made again, finds the state and the recipe that it goes on from.
  absl::Status OpenJournal(const std::string& name, const PipelineLife& life, PipelineRecipe* recipe,
                           ServedPipeline::Durable* durable, std::optional<LoadedCheckpoint>* base) const;
  absl::StatusOr<std::optional<LoadedCheckpoint>> FindBase(const std::string& name, const std::string& life,
                                                           int64_t cut_sequence) const;
  static absl::StatusOr<std::optional<OpenTraining>> ContinueTraining(LoadedCheckpoint base, Pipeline& pipeline);
  // Puts the state of a checkpoint into a new pipeline.
  absl::Status Restore(const CheckpointSource& source, const std::string& spec_digest, const MemoryHolder& holder,
                       Pipeline& pipeline) const;
  Pipeline::Options EngineOptions(bool rehearse, Planning* planning) const;
  // Lets the engine reserve what it places, for as long as the reservation lives; null: nobody counts.
  absl::StatusOr<std::shared_ptr<MemoryReservation>> HoldMemory(MemoryHolder holder, Pipeline::Options* engine) const;
  template <typename Found, typename Look>
  absl::StatusOr<Found> Trial(const std::string& caller, PipelineSpec spec, const MayRehearse& may_rehearse,
                              Planning* planning, const Look& look) const;

  const Options options_;
};

}  // namespace penstock
