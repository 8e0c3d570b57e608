#include "engine/exec/local_coordinator.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/guard.h"

namespace penstock {

void LocalCoordinator::OpenStep(int stages, const TiedGradients& ties, std::function<void()> decide) {
  ties_ = ties;
  ties_missing_ = ties.empty() ? 0 : stages;
  norms_.resize(stages);
  norms_missing_ = stages + (expects_values_ ? 1 : 0);
  steps_ = true;
  decide_ = std::move(decide);
}

void LocalCoordinator::Lead(Followers followers) {
  open_lanes_ += followers.ranks;
  followers_ = std::move(followers);
}

bool LocalCoordinator::Hold() {
  int open = open_lanes_.load();
  while (open > 0 && !open_lanes_.compare_exchange_weak(open, open + 1)) {
  }
  return open > 0;
}

bool LocalCoordinator::BeDue(int64_t now) {
  if (turns_ == nullptr || !turns_->Claim(*ticket_, now)) return false;
  if (followers_.due && !told_due_.exchange(true)) {
    wake_();
    followers_.due();
  }
  return true;
}

void LocalCoordinator::ExpectValues() {
  expects_values_ = true;
  ++open_lanes_;
}

void LocalCoordinator::EndValues() {
  const absl::Status decided = Guarded("a decision", [this] {
    if (steps_) EndNorms();
  });
  if (!decided.ok()) Fail(decided);
  Leave(/*before_the_end=*/false);
}

void LocalCoordinator::Wake() {
  wake_();
  if (followers_.stop && Stopped() && !told_to_stop_.exchange(true)) followers_.stop();
}

void LocalCoordinator::WaitForTurn(InferenceTurns* turns, std::shared_ptr<InferenceTicket> ticket) {
  turns_ = turns;
  ticket_ = std::move(ticket);
}

void LocalCoordinator::GiveWay() {
  gave_way_.store(true, std::memory_order_release);
  Wake();
}

std::vector<at::Tensor> LocalCoordinator::Norms() const {
  std::vector<at::Tensor> norms;
  for (const auto& of_stage : norms_) norms.insert(norms.end(), of_stage.begin(), of_stage.end());
  return norms;
}

void LocalCoordinator::Grant() {
  granted_.store(true, std::memory_order_release);
  wake_();
  if (followers_.grant) followers_.grant(decision_);
  gate_.Notify();  // last: the leader goes on with it
}

absl::Status LocalCoordinator::Result() const {
  if (error_.Failed()) return error_.status();
  if (!Cancelled()) return absl::OkStatus();
  return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the work was cancelled");
}

bool LocalCoordinator::MustRunAgain() const { return gave_way_ && cut_short_ > 0 && !error_.Failed() && !Cancelled(); }

void LocalCoordinator::Fail(absl::Status status) {
  error_.Record(std::move(status));
  Wake();
}

bool LocalCoordinator::Stopped() const {
  return error_.Failed() || Cancelled() || gave_way_.load(std::memory_order_acquire);
}

void LocalCoordinator::Leave(bool before_the_end) {
  if (before_the_end) cut_short_.fetch_add(1, std::memory_order_relaxed);
  if (Stopped()) Wake();  // lanes that wait for this one need not wait any more
  if (open_lanes_.fetch_sub(1, std::memory_order_acq_rel) == 1) ended_();
}

void LocalCoordinator::EndTies() {
  if (ties_missing_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  wake_();
  if (followers_.tie) followers_.tie(ties_);
}

void LocalCoordinator::EndNorms() {
  if (norms_missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) decide_();
}

}  // namespace penstock
