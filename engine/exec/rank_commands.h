#pragma once

// What the leader of a pipeline and another rank that has stages of it say to each other. Tensors of a run travel by the
// transport, all else by these two interfaces, over whatever brings the calls there.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/exec/run_coordinator.h"
#include "engine/exec/run_spec.h"
#include "engine/exec/state_of_stage.h"
#include "engine/exec/tied_parameters.h"
#include "engine/filling/inference_order.h"
#include "engine/model/metric.h"
#include "engine/model/model_spec.h"
#include "engine/observe/lane_report.h"
#include "engine/observe/stage_state.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// A run as another rank gets it. Inputs, targets and gradients of outputs follow by the transport.
struct RunOrder {
  RunSpec spec;
  std::optional<LossSpec> loss = {};  // of the call; none: the pipeline's own, if there are shares
  int output = 0;                     // that the loss is of
  bool targets = false;               // come for it
  std::vector<double> shares = {};    // by micro-batch, of the step's counted elements; empty: no loss
  std::vector<std::string> metrics = {};
  InferenceOrder order = {};  // of an inference
};

// What a rank knows of a run when it has done its work: what the last stage has measured, and what its own lanes did.
struct Measures {
  std::vector<double> losses = {};                       // by micro-batch; empty on other ranks
  std::vector<std::vector<MetricSum>> metric_sums = {};  // by micro-batch, then by metric
  LaneReports lanes = {};                                // when the last one has left
};

struct NormsOfStage {
  int stage = 0;
  std::vector<at::Tensor> norms;  // of its parameters, scalars on the host
};

// From the leader to a rank.
//
// Threads:   from any thread; what is told comes to the rank in order. None waits for the rank, and `done` is called
//            once, on any thread.
// Fails:     a rank that can't be reached any more is lost, which whoever carries the calls tells to the leader; then
//            calls do nothing, and `done` gets UNAVAILABLE / RANK_LOST.
class RankCommands {
 public:
  template <typename Result>
  using Done = std::function<void(Result)>;

  virtual ~RankCommands() = default;

  // --- Runs: Start(), what happens in between, and End() once the rank has left.
  virtual void Start(RunOrder order) = 0;
  virtual void Stop(int64_t run) = 0;                         // its lanes leave
  virtual void PutTies(int64_t run, TiedGradients ties) = 0;  // of all stages
  virtual void Grant(int64_t run, StepDecision decision) = 0;
  virtual void BeDue(int64_t run) = 0;  // an inference goes before training from now on
  virtual void End(int64_t run) = 0;

  virtual void ForgetGraph(int64_t run) = 0;  // of a Forward

  // --- Stages, between runs: as RankEngine. Tensors that are told are copies on the host.
  virtual void EndContribution(bool keep, MicroBatchIndex first) = 0;
  virtual void DiscardGradients() = 0;
  virtual void RestoreTiedGradients() = 0;  // of the last run with a step
  virtual void SetIdle(StageState state) = 0;
  virtual void Undo(Done<absl::Status> done) = 0;
  virtual void ReadFacts(Done<absl::StatusOr<FactsOfRank>> done) = 0;
  virtual void ReadState(bool with_optimizer, Done<absl::StatusOr<StatesOfStages>> done) = 0;
  // Takes of a whole state what its stages have, with the copies of tied parameters that others save.
  virtual void WriteState(NamedTensors state, Done<absl::Status> done) = 0;
  // Gradients of its uses of tied parameters; then all gradients by stage, given those of all uses.
  virtual void ReadTies(Done<absl::StatusOr<TiedGradients>> done) = 0;
  virtual void ReadGradients(TiedGradients ties, Done<absl::StatusOr<StatesOfStages>> done) = 0;
  virtual void ReadAccumulated(Done<absl::StatusOr<NamedTensors>> done) = 0;
  // Of what all ranks had accumulated, it takes its own; and tells how many those were.
  virtual void WriteAccumulated(NamedTensors accumulated, Done<absl::StatusOr<int64_t>> done) = 0;
  virtual void UpdateOptimizer(OptimizerSpec spec, Done<absl::Status> done) = 0;
};

// From a rank to the leader.
//
// Threads:   from any thread; a rank's own are told in order. None blocks.
class RankEvents {
 public:
  virtual ~RankEvents() = default;

  virtual void Failed(Rank rank, int64_t run, const absl::Status& why) = 0;
  virtual void HasTies(Rank rank, int64_t run, TiedGradients own) = 0;  // undefined where it has none
  virtual void HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) = 0;
  // The last lane has left. After it the rank tells nothing of the run.
  virtual void Left(Rank rank, int64_t run, bool before_the_end, Measures measures) = 0;
  // It does not come back: a pipeline that has stages there must be built again.
  virtual void Lost(Rank rank, const absl::Status& why) = 0;
};

}  // namespace penstock
