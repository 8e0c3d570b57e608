#include "engine/exec/lane_step.h"

#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "engine/device/copy_tensors.h"
#include "engine/device/device_streams.h"

namespace penstock {
namespace {

// On their way to the host: an accelerator's in one copy.
std::vector<at::Tensor> SendNorms(std::vector<at::Tensor> norms, DeviceStreams& streams) {
  if (norms.empty() || norms.front().is_cpu()) return norms;
  return SendToHost(at::stack(norms), streams).unbind();
}

// Waits for all that the stage's device was given, the one time in a step: without the norms nothing can be decided.
void Wait(DeviceStreams& streams) {
  if (const EventPtr end = streams.Record(StreamKind::kCompute)) end->Synchronize();
}

FaultPoint FirstPointOf(LaneStep::Part part) {
  return part == LaneStep::Part::kShareTies ? FaultPoint::kShareTies
         : part == LaneStep::Part::kNorms   ? FaultPoint::kSumTies
                                            : FaultPoint::kUpdate;
}

}  // namespace

LaneStep::LaneStep(const Run* run)
    : run_(run), part_(run->coordinator->ties().empty() ? Part::kNorms : Part::kShareTies) {}

bool LaneStep::MayGoOn() const {
  if (part_ == Part::kNorms) return run_->coordinator->TiesAreIn();
  return part_ == Part::kShareTies || run_->coordinator->Granted();
}

void LaneStep::Enter(ActionKind kind) {
  at_ = kind == ActionKind::kOptimizer ? std::optional(FirstPointOf(part_)) : std::nullopt;
}

void LaneStep::Compute(Stage& stage) {
  RunCoordinator& coordinator = *run_->coordinator;
  const auto at = [&](FaultPoint point) {
    at_ = point;
    if (run_->fault_point) run_->fault_point(point, stage.index());
  };
  switch (part_) {
    case Part::kShareTies:
      at(FaultPoint::kShareTies);
      return stage.ShareTiedGradients(coordinator.ties());
    case Part::kNorms: {
      DeviceStreams& streams = StreamsOf(stage.device());
      at(FaultPoint::kSumTies);
      std::vector<at::Tensor> norms = SendNorms(stage.SumTiedGradients(coordinator.ties()), streams);
      at(FaultPoint::kKeepForUndo);
      stage.KeepForUndo();
      Wait(streams);
      return coordinator.PutNorms(stage.index(), std::move(norms));
    }
    case Part::kApply:
      at(FaultPoint::kUpdate);
      if (!coordinator.decision().applied) return;
      stage.Step(coordinator.decision().learning_rate, coordinator.decision().scale);
      at(FaultPoint::kStatistics);
      stage.CommitStatistics();
      at(FaultPoint::kUpdated);
  }
}

void LaneStep::EndPart(bool last) {
  const bool ties = part_ == Part::kShareTies;
  if (last) part_ = ties ? Part::kNorms : Part::kApply;
  ties ? run_->coordinator->EndTies() : run_->coordinator->EndNorms();
}

}  // namespace penstock
