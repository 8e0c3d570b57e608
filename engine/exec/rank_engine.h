#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/exec/bubble_filling.h"
#include "engine/exec/device_worker.h"
#include "engine/exec/fault_point.h"
#include "engine/exec/run.h"
#include "engine/exec/schedule_book.h"
#include "engine/exec/stage.h"
#include "engine/exec/stage_executor.h"
#include "engine/exec/state_of_stage.h"
#include "engine/observe/metrics.h"
#include "engine/plan/plan.h"
#include "engine/tensor/named_tensors.h"
#include "engine/transport/transport.h"

namespace penstock {

// The stages and lanes of one process, all of a plan's or some of them: what a pipeline's leader commands. It knows no
// client, no gate and no step's number.
//
// Model:     Runs come and go; the stages keep weights, gradients and what an undo needs between them. Whoever leads a
//            run talks with its lanes through the run's coordinator.
// Owns:      stages, lanes, the transport between them, and what is known of their gaps. Workers, metrics and what
//            Parts points to outlive it.
// Threads:   Find, Prepare, Start, End and WakeAll from any thread; what reads or changes stages from the thread of the
//            training calls, between runs.
// Lifecycle: Prepare(), Start(), the end of the run, which its coordinator reports, End().
class RankEngine {
 public:
  // `streams` by stage; null: another rank's.
  using MakeTransport = std::function<std::unique_ptr<Transport>(std::vector<DeviceStreams*> streams,
                                                                 std::function<void(const MessageKey&)> on_arrival)>;
  struct Parts {
    const Plan* plan = nullptr;                  // of all ranks
    std::vector<std::unique_ptr<Stage>> stages;  // of this one, in model order
    std::vector<DeviceWorker*> workers;          // by lane; null: another rank's
    // Makes what carries messages to other ranks' stages, and tells of what has come for this rank's; null: all stages
    // are here.
    MakeTransport transport = {};
    std::function<void(const MessageKey&)> on_value = {};  // a message to the leader has come; may be empty
    PipelineMetrics* metrics = nullptr;
    Clock* clock = nullptr;
    BubbleFillingSpec filling = {};
    BubbleFilling::Foresight foresight = {};
    std::function<void(Schedule&)> edit_lists = {};               // as PipelineEdits; may be empty
    std::function<void(const Action&)> before_action = {};        // for tests that break one
    std::function<void(FaultPoint, int stage)> fault_point = {};  // the same
    std::function<void(const PassEvent&)> watch_passes = {};      // for tests that count
  };
  explicit RankEngine(Parts parts);

  int lanes() const { return static_cast<int>(lanes_.size()); }  // of this rank
  bool HasStage(int stage) const;
  // Null where the first stage is another rank's.
  const Device* first_device() const { return HasStage(0) ? &stages_.front()->device() : nullptr; }
  BubbleFilling& filling() { return filling_; }
  Transport& transport() { return *transport_; }
  int64_t NowNanos() const { return clock_->NowNanos(); }

  // --- Runs.

  // The lists of a purpose and a number of micro-batches. Fails: as ScheduleBook.
  absl::StatusOr<ListsOfRun> Find(SchedulePurpose purpose, int micro_batches) {
    return schedules_.Find(purpose, micro_batches);
  }
  // A run with places for all that its lanes make; inputs, losses and gradients are the caller's to put in.
  std::shared_ptr<Run> Prepare(RunSpec spec, ListsOfRun lists, std::shared_ptr<RunCoordinator> coordinator);
  // Gives every lane of this rank its list.
  void Start(const std::shared_ptr<Run>& run);
  // All lanes have left: their messages go, and the step on a lane is closed unless it was an inference.
  void End(const Run& run);
  void WakeAll();

  // --- Stages, between runs.

  // The gradients of a contribution stay, or go with what it has noted from that micro-batch on.
  void EndContribution(bool keep, MicroBatchIndex first);
  void DiscardGradients();
  void RestoreTiedGradients(const TiedGradients& ties);
  // Takes a step back that some stages have done. Fails: as RunTorch; then the weights belong to no step: the pipeline
  // is broken.
  absl::Status Undo();

  // Parameters, buffers and, if asked, optimizer state, in model order: views. And the copies of tied ones among them.
  NamedTensors StateViews(bool with_optimizer) const;
  NamedTensors ReplicaViews() const;
  // The same by stage; and what these stages have of a whole state, put back. Fails: MODEL_MISMATCH naming what is not
  // there or does not fit, with nothing changed; as RunTorch, half-way.
  StatesOfStages States(bool with_optimizer) const;
  absl::Status TakeState(const NamedTensors& state);
  FactsOfRank Facts() const;
  // What is accumulated, as a step would take it: puts the gradients of this rank's uses of tied parameters into their
  // places (`places`: one per use); and returns the gradients of each of its stages, given those of all uses. Parameters
  // without a gradient are left out. Views, and sums of tied ones. May throw (RunTorch).
  void ShareTiedGradients(TiedGradients& places) const;
  StatesOfStages GradientsOfStages(const TiedGradients& ties) const;
  // What is accumulated, as the stages have it, with what they have noted (Stage::Accumulated): views. And back, into
  // stages that have nothing of it: those that are this rank's, and how many they were. Fails: as RunTorch;
  // MODEL_MISMATCH; then discard.
  absl::StatusOr<NamedTensors> Accumulated() const;
  absl::StatusOr<int64_t> TakeAccumulated(const NamedTensors& accumulated);
  int64_t parameter_count() const;
  // Other settings of the optimizer, on all stages or on none. Fails: as Optimizer::WithSettings.
  absl::Status UpdateOptimizer(const OptimizerSpec& spec);
  void FreezeGroups(const std::vector<ParameterGroup>& groups);
  // What its lanes are counted under while they have nothing to do.
  void SetIdle(StageState state) const;

 private:
  // On the streams that runs compute on, lane by lane. Fails: as RunTorch, without the stages behind.
  absl::Status OnEachStage(const std::function<void(Stage&)>& body) const;
  void AddLane(int index);
  void OnArrival(const MessageKey& key);
  void CountHeldBytes(Lane& lane) const;

  const Plan& plan_;
  const std::vector<DeviceWorker*> workers_;
  const std::vector<std::unique_ptr<Stage>> stages_;  // the stages themselves belong to their devices' threads
  PipelineMetrics* const metrics_;
  Clock* const clock_;
  const std::function<void(const Action&)> before_action_;
  const std::function<void(FaultPoint, int)> fault_point_;
  const std::function<void(const PassEvent&)> watch_passes_;

  // Safe by itself.
  ScheduleBook schedules_;
  std::vector<Lane*> lane_at_;  // by lane; null: another rank's
  const std::function<void(const MessageKey&)> on_value_;
  BubbleFilling filling_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Transport> transport_;  // behind what its arrivals use
};

}  // namespace penstock
