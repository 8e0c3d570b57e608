#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/job_thread.h"
#include "engine/exec/following_coordinator.h"
#include "engine/exec/rank_commands.h"
#include "engine/exec/rank_engine.h"
#include "engine/exec/run.h"
#include "engine/model/loss.h"
#include "engine/model/metric.h"
#include "engine/observe/lane_reporter.h"

namespace penstock {

// The stages of a pipeline on a rank that does not lead it: does what its leader says, and tells what comes of it.
//
// Model:     Commands are done in order, on a thread of their own. A run is open from Start() to End(); its lanes talk
//            with it through a FollowingCoordinator. What a Forward keeps stays under the number of its run until a
//            Backward or the leader forgets it.
// Owns:      the engine, and with it the stages. Workers, metrics and the leader outlive it.
// Threads:   any method from any thread.
// Lifecycle: the destructor does what was said before, and waits until the lanes have left.
class RankHost final : public RankCommands {
 public:
  struct Parts {
    Rank self;
    Plan plan;
    std::shared_ptr<PipelineMetrics> metrics;
    RankEngine::Parts engine;  // but for its plan
    OptimizerSpec optimizer;
    TiedGradients ties;          // empty places, one per use of each tied parameter
    LossSpec loss_spec;          // of the pipeline
    std::unique_ptr<Loss> loss;  // the same; null: none
    RankEvents* leader = nullptr;
  };
  explicit RankHost(Parts parts);
  ~RankHost() override;

  void Start(RunOrder order) override;
  void Stop(int64_t run) override;
  void PutTies(int64_t run, TiedGradients ties) override;
  void Grant(int64_t run, StepDecision decision) override;
  void BeDue(int64_t run) override;
  void End(int64_t run) override;
  void ForgetGraph(int64_t run) override;
  void EndContribution(bool keep, MicroBatchIndex first) override;
  void DiscardGradients() override;
  void RestoreTiedGradients() override;
  void SetIdle(StageState state) override;
  void Undo(Done<absl::Status> done) override;
  void ReadFacts(Done<absl::StatusOr<FactsOfRank>> done) override;
  void ReadState(bool with_optimizer, Done<absl::StatusOr<StatesOfStages>> done) override;
  void WriteState(NamedTensors state, Done<absl::Status> done) override;
  void ReadTies(Done<absl::StatusOr<TiedGradients>> done) override;
  void ReadGradients(TiedGradients ties, Done<absl::StatusOr<StatesOfStages>> done) override;
  void ReadAccumulated(Done<absl::StatusOr<NamedTensors>> done) override;
  void WriteAccumulated(NamedTensors accumulated, Done<absl::StatusOr<int64_t>> done) override;
  void UpdateOptimizer(OptimizerSpec spec, Done<absl::Status> done) override;

  // The transport has failed in what concerns all runs: those to come, too, where a rank is lost.
  void FailRuns(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Graphs = std::map<int64_t, std::vector<std::vector<Pass>>>;  // by the run of their Forward
  struct OpenRun {
    std::shared_ptr<Run> run;
    JobThread::Prepared close;  // of a run that has left and ended
    std::shared_ptr<FollowingCoordinator> coordinator;
    std::unique_ptr<Loss> own_loss;
    std::vector<std::unique_ptr<EvaluationMetric>> metrics;
    bool left = false;       // its lanes have
    bool ended = false;      // the leader has said so
    bool forgotten = false;  // its graph
    Graphs kept;             // of a run that keeps one: its place among the others, which takes no memory at the end
  };

  // A command that reads or changes stages.
  void Change(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, whose result is the answer.
  template <typename Result, typename Work>
  void Answer(Done<Result> done, Work work);
  absl::Status Open(const RunOrder& order) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckOpening(const RunSpec& spec) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ListsOfRun> ListsOf(const RunSpec& spec);
  std::shared_ptr<FollowingCoordinator> NewCoordinator(const RunOrder& order);
  void Expect(const RunOrder& order, OpenRun& open) const;
  // The leader knows nothing of the run any more.
  void TellLeft(int64_t run, bool before_the_end, Measures measures);
  void OnEachRun(absl::FunctionRef<void(FollowingCoordinator&)> work) ABSL_LOCKS_EXCLUDED(mu_);
  void StopRuns() ABSL_LOCKS_EXCLUDED(mu_);
  void CloseRun(int64_t run) ABSL_LOCKS_EXCLUDED(mu_);
  void OnLeft(int64_t run, bool before_the_end) ABSL_LOCKS_EXCLUDED(mu_);
  Measures MeasuresOf(const Run& run) const;
  std::shared_ptr<FollowingCoordinator> CoordinatorOf(int64_t run) const ABSL_LOCKS_EXCLUDED(mu_);

  const Rank self_;
  const Plan plan_;
  const TiedGradients ties_;
  const LossSpec loss_spec_;
  const std::unique_ptr<Loss> loss_;
  RankEvents* const leader_;
  const std::shared_ptr<PipelineMetrics> metrics_;

  mutable absl::Mutex mu_;
  std::map<int64_t, OpenRun> open_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);  // why no run can be any more, or OK
  int running_ ABSL_GUARDED_BY(mu_) = 0;    // whose lanes have not left
  int training_ ABSL_GUARDED_BY(mu_) = 0;   // of those, runs that are no inference
  LaneReporter lanes_ ABSL_GUARDED_BY(mu_);

  RankEngine engine_;  // behind what it tells of failures

  // The command thread's.
  std::shared_ptr<FollowingCoordinator> last_step_;
  Graphs graphs_;
  JobThread commands_{"ps-rank"};  // last: its jobs use all of the above
};

}  // namespace penstock
