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

}  // namespace

FaultPoint LaneStep::FirstPointOf(Part part) {
  return part == Part::kShareTies ? FaultPoint::kShareTies
         : part == Part::kNorms   ? FaultPoint::kSumTies
                                  : FaultPoint::kUpdate;
}

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
      EventPtr made = streams.Record(StreamKind::kCompute);  // with all that the device was given before
      if (made == nullptr) return coordinator.PutNorms(stage.index(), std::move(norms));
      on_their_way_.push_back({stage.index(), std::move(norms), std::move(made)});
      return;
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
  if (ties) return run_->coordinator->EndTies();
  if (!awaits_norms()) run_->coordinator->EndNorms();
}

void LaneStep::TakeNorms() {
  while (awaits_norms() && on_their_way_.front().made->Ready()) {
    Norms came = std::move(on_their_way_.front());
    on_their_way_.erase(on_their_way_.begin());
    run_->coordinator->PutNorms(came.stage, std::move(came.norms));
    run_->coordinator->EndNorms();
  }
}

}  // namespace penstock
