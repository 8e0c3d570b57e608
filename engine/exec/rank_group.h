#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/local_coordinator.h"
#include "engine/exec/rank_commands.h"
#include "engine/exec/rank_engine.h"
#include "engine/exec/run.h"
#include "engine/exec/tied_parameters.h"
#include "engine/observe/lanes_elsewhere.h"

namespace penstock {

// All ranks that have stages of a pipeline, as its leader sees them: its own engine, and what it says to the others.
// Where there are no others it adds nothing. What it asks the others fails with UNAVAILABLE / RANK_LOST, too.
//
// Model:     a run is open here from Start() to End(). Each other rank counts as one lane of the run's coordinator, and
//            so do the values that come back from other ranks; a rank that is lost fails all open runs and leaves them.
//            A pipeline that has lost a rank must be built again.
// Owns:      the commands of the other ranks; they go before the engine.
// Threads:   as RankEngine; the events from any thread.
// Fails:     what is told of a lost rank, and of a run that ends, takes no memory here: no run stays open for want of it.
class RankGroup final : public RankEvents {
 public:
  struct Options {
    RankEngine* own = nullptr;
    const Plan* plan = nullptr;
    DevicePool* devices = nullptr;
    PipelineMetrics* metrics = nullptr;
    std::vector<TiedPlace> tied = {};
    std::function<void(Rank, const absl::Status&)> on_rank_lost = {};  // as Pipeline::Options; may be empty
  };
  explicit RankGroup(Options options)
      : own_(*options.own),
        plan_(*options.plan),
        devices_(options.devices),
        tied_(std::move(options.tied)),
        on_rank_lost_(std::move(options.on_rank_lost)),
        lanes_elsewhere_(options.metrics) {}

  using Others = std::map<Rank, std::unique_ptr<RankCommands>>;
  // Before the first run. Fails: as ReadFacts.
  absl::Status Join(Others others);
  // After the last one.
  void Part();
  bool alone() const { return others_.empty(); }

  // --- Runs.

  // Before OpenStep() of the leader: the other ranks follow it. The run is open until End(), or until what this returns
  // goes, where it was not started.
  std::shared_ptr<const void> Lead(const std::shared_ptr<Run>& run, const std::shared_ptr<LocalCoordinator>& leader);
  // Gives every lane its list, here and elsewhere, and the others what they need of the inputs. Throws as
  // RankEngine::Start, and then nothing has started; what goes wrong later fails the run.
  void Start(const std::shared_ptr<Run>& run);
  void End(const Run& run);
  // A training run begins: open inference runs that have waited long enough become due, on all ranks.
  void ClaimTurns(int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  // What a Forward of this run keeps elsewhere stays as long as this, from any thread; null where there is no elsewhere.
  std::shared_ptr<const void> KeepGraph(int64_t run) const;
  // A message to the leader has come.
  void OnValue(const MessageKey& key);
  // The transport has failed in what concerns them all. A rank that it can't reach is lost.
  void FailRuns(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // --- Stages, between runs: as RankEngine, on all ranks.

  void EndContribution(bool keep, MicroBatchIndex first);
  void DiscardGradients();
  void RestoreTiedGradients(const TiedGradients& ties);
  absl::Status Undo();
  void SetIdle(StageState state) const ABSL_LOCKS_EXCLUDED(mu_);
  // Views of what is here, copies on the host of what is elsewhere.
  absl::StatusOr<NamedTensors> State(bool with_optimizer) const;
  absl::StatusOr<NamedTensors> Gradients(TiedGradients places) const;
  absl::StatusOr<NamedTensors> Accumulated() const;
  absl::Status SetAccumulated(const NamedTensors& accumulated);
  absl::Status UpdateOptimizer(const OptimizerSpec& spec);
  // Of a whole state that fits, what stands elsewhere.
  absl::Status WriteElsewhere(const NamedTensors& state);
  // Names and shapes of all that is saved, in model order; of what stands elsewhere.
  NamedTensors Shapes() const;
  NamedTensors ShapesElsewhere() const { return InModelOrder(elsewhere_.shapes); }
  std::vector<std::string> ParameterNames() const;
  int64_t parameter_count() const { return own_.parameter_count() + elsewhere_.parameter_count; }
  // OK, or which rank is lost.
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mu_);

  // --- RankEvents.

  void Failed(Rank rank, int64_t run, const absl::Status& why) override;
  void HasTies(Rank rank, int64_t run, TiedGradients own) override;
  void HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) override;
  void Left(Rank rank, int64_t run, bool before_the_end, Measures measures) override;
  void Lost(Rank rank, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Hold;
  using ValueName = std::pair<MessageKind, int>;  // of a micro-batch
  // What a rank has told of a run, each at most once.
  struct Told {
    bool ties = false;
    bool norms = false;
    bool left = false;  // or it was given up
  };
  struct OpenRun {
    std::shared_ptr<Run> run;
    std::shared_ptr<LocalCoordinator> leader;
    std::map<Rank, Told> ranks;  // all others
    std::set<ValueName> values;  // that are still to come
    bool started = false;
  };
  // What the ends of graphs need, which may come after this.
  struct Graphs {
    absl::Mutex mu;
    const Others* others ABSL_GUARDED_BY(mu) = nullptr;
  };
  bool Here(int stage) const { return own_.HasStage(stage); }
  int last_stage() const { return static_cast<int>(plan_.stages.size()) - 1; }
  std::set<ValueName> ValuesOf(const Run& run) const;
  RunOrder OrderOf(const Run& run) const;
  void StartOthers(const Run& run, const RunOrder& order, LocalCoordinator& leader);
  void SendValues(const Run& run, LocalCoordinator& leader);
  void Forget(int64_t run) ABSL_LOCKS_EXCLUDED(mu_);
  Hold HoldOf(int64_t run) const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t NextOpen(int64_t run) const ABSL_LOCKS_EXCLUDED(mu_);  // behind it; 0: none
  void TakeValue(const MessageKey& key, LocalCoordinator& leader) ABSL_LOCKS_EXCLUDED(mu_);
  // The run that a rank tells of: it has started, the rank has not left it, and has told no such thing of it. That it
  // leaves (null), Leave() notes. Fails: RANK_MESSAGE; takes no memory else.
  absl::StatusOr<std::shared_ptr<Run>> Hear(Rank rank, int64_t run, bool Told::*what) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckWhole(const StatesOfStages& states) const;  // RANK_MESSAGE
  // What a rank tells must be what it can know: RANK_MESSAGE.
  absl::Status CheckTies(Rank rank, const Run& run, const TiedGradients& own) const;
  absl::Status CheckStages(Rank rank, const Run& run, const std::vector<NormsOfStage>& norms) const;
  absl::Status CheckMeasures(Rank rank, const Run& run, const Measures& measures, bool with_norms) const;
  static void Note(Run& run, Measures measures);
  void GiveUpValues(int64_t run) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveUp(Rank rank, int64_t run, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(Rank rank, int64_t run, bool before_the_end) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StatusOf(Rank rank) const ABSL_LOCKS_EXCLUDED(mu_);
  void Tell(absl::FunctionRef<void(RankCommands&)> command) const;
  // What each of the others answers, one after the other. Fails: as the first that does.
  template <typename Result>
  absl::Status Ask(
      const std::function<void(Rank, RankCommands&, std::function<void(absl::StatusOr<Result>)>)>& question,
      const std::function<void(Rank, Result)>& take) const;
  absl::Status Ask(const std::function<void(Rank, RankCommands&, std::function<void(absl::Status)>)>& command) const;
  bool Has(Rank rank, const std::string& name) const;

  RankEngine& own_;
  const Plan& plan_;
  DevicePool* const devices_;
  const std::vector<TiedPlace> tied_;
  std::vector<at::Tensor> tied_shapes_;  // of each, once others have joined
  const std::function<void(Rank, const absl::Status&)> on_rank_lost_;
  const absl::Status lost_untold_ =
      Error(absl::StatusCode::kUnavailable, "RANK_LOST", "a rank is lost, for there was no memory to speak with it");
  Others others_;
  const std::shared_ptr<Graphs> graphs_ = std::make_shared<Graphs>();
  FactsOfRank elsewhere_;                                // of all others
  std::map<Rank, std::set<std::string>> state_of_rank_;  // names of what it saves

  mutable absl::Mutex mu_;
  std::map<int64_t, OpenRun> open_ ABSL_GUARDED_BY(mu_);
  mutable LanesElsewhere lanes_elsewhere_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, absl::Status> lost_ ABSL_GUARDED_BY(mu_);  // OK: it is there
};

}  // namespace penstock
