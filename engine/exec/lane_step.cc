#include "engine/exec/lane_step.h"

#include <utility>
#include <vector>

#include "engine/device/copy_tensors.h"

namespace penstock {
namespace {

// On the host. May throw (RunTorch).
std::vector<at::Tensor> Norms(Stage& stage, const TiedGradients& ties) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& norm : stage.SumTiedGradients(ties)) norms.push_back(ToHost(norm));
  return norms;
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
    case Part::kNorms:
      at(FaultPoint::kSumTies);
      coordinator.PutNorms(stage.index(), Norms(stage, coordinator.ties()));
      at(FaultPoint::kKeepForUndo);
      return stage.KeepForUndo();
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
