#include "engine/exec/following_coordinator.h"

#include <algorithm>

#include "engine/base/guard.h"
#include "engine/base/rank_message.h"

namespace penstock {

FollowingCoordinator::FollowingCoordinator(int lanes, std::vector<int> stages, TiedGradients ties,
                                           std::shared_ptr<InferenceTicket> ticket, Hooks hooks)
    : hooks_(std::move(hooks)),
      ticket_(std::move(ticket)),
      open_lanes_(lanes),
      ties_(std::move(ties)),
      ties_missing_(static_cast<int>(stages.size())),
      ties_in_(ties_.empty()),
      norms_missing_(static_cast<int>(stages.size())) {
  for (const int stage : stages) norms_.push_back({.stage = stage, .norms = {}});
}

void FollowingCoordinator::Stop() {
  stopped_.store(true, std::memory_order_release);
  hooks_.wake();
}

absl::Status FollowingCoordinator::PutTies(const TiedGradients& ties) {
  if (ties_missing_.load(std::memory_order_acquire) > 0 || TiesAreIn()) {
    return BadRankMessage("put_ties", "must come once, when this rank has told its own", "others");
  }
  const auto as_many = [](const auto& one, const auto& other) { return one.size() == other.size(); };
  if (!std::equal(ties_.begin(), ties_.end(), ties.begin(), ties.end(), as_many)) {
    return BadRankMessage("put_ties.ties.uses", "must be those of the tied parameters", "others");
  }
  for (size_t group = 0; group < ties_.size(); ++group) {
    for (size_t use = 0; use < ties_[group].size(); ++use) {
      at::Tensor& place = ties_[group][use];
      if (!place.defined()) place = ties[group][use];
    }
  }
  ties_in_.store(true, std::memory_order_release);
  hooks_.wake();
  return absl::OkStatus();
}

absl::Status FollowingCoordinator::Grant(const StepDecision& decision) {
  if (norms_missing_.load(std::memory_order_acquire) > 0 || Granted()) {
    return BadRankMessage("grant", "must come once, when this rank has told its norms", "another");
  }
  decision_ = decision;
  granted_.store(true, std::memory_order_release);
  hooks_.wake();
  return absl::OkStatus();
}

void FollowingCoordinator::PutDue() {
  if (ticket_ == nullptr) return;
  ticket_->due.store(true, std::memory_order_release);
  hooks_.wake();
}

void FollowingCoordinator::Fail(absl::Status status) {
  Guarded("what a rank tells", [&] { hooks_.failed(status); }).IgnoreError();  // that it has left early, says it too
  Stop();
}

void FollowingCoordinator::Leave(bool before_the_end) {
  if (before_the_end) cut_short_.store(true, std::memory_order_relaxed);
  if (Stopped()) hooks_.wake();  // lanes that wait for this one need not wait any more
  if (open_lanes_.fetch_sub(1, std::memory_order_acq_rel) == 1) hooks_.left(cut_short_.load());
}

void FollowingCoordinator::EndTies() {
  if (ties_missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) hooks_.has_ties(ties_);
}

void FollowingCoordinator::PutNorms(int stage, std::vector<at::Tensor> norms) {
  for (NormsOfStage& of_stage : norms_) {
    if (of_stage.stage == stage) of_stage.norms = std::move(norms);
  }
}

void FollowingCoordinator::EndNorms() {
  if (norms_missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) hooks_.has_norms(std::move(norms_));
}

}  // namespace penstock
