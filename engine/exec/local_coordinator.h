#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/cancel_token.h"
#include "engine/base/first_error.h"
#include "engine/exec/run_coordinator.h"
#include "engine/filling/inference_turns.h"

namespace penstock {

// A run's coordinator in the process that leads it, in memory. Lanes of other ranks have coordinators of their own, which
// follow this one.
//
// Owns:      what the lanes put in, and the decision.
// Threads:   as RunCoordinator. What the leader sets up is constant once the lanes have started; it decides on the
//            thread of the lane that completes the norms, and grants on any.
// Lifecycle: the leader's hooks run while lanes do, and must outlive the run's end.
class LocalCoordinator final : public RunCoordinator {
 public:
  // `wake` makes every lane look again. `cancel` may be null; it must be with an optimizer step, which is all or
  // nothing.
  LocalCoordinator(int lanes, std::function<void()> wake, std::shared_ptr<CancelToken> cancel)
      : wake_(std::move(wake)), cancel_(std::move(cancel)), open_lanes_(lanes) {}

  // --- What the leader does before the lanes start.

  // Called once, by the last lane; throws nothing.
  void OnEnd(std::function<void()> ended) { ended_ = std::move(ended); }
  // A step ends the run. `decide` is called once, when all norms are in.
  void OpenStep(int stages, const TiedGradients& ties, std::function<void()> decide);
  // The lanes of other ranks: each rank leaves as one lane does, and is told what this one's lanes see, once.
  struct Followers {
    int ranks = 0;
    std::function<void()> stop = {};
    std::function<void(const TiedGradients&)> tie = {};
    std::function<void(const StepDecision&)> grant = {};
    std::function<void()> due = {};
  };
  void Lead(Followers followers);
  // The run does not end before one Leave() more. False: it has ended.
  bool Hold();
  // Values come back from another rank. The run, and its decision, wait for them; EndValues() says that they are there.
  // Before OpenStep().
  void ExpectValues();
  // It is an inference that waits for its turn beside training.
  void WaitForTurn(InferenceTurns* turns, std::shared_ptr<InferenceTicket> ticket);

  // --- While they run.

  // An inference stops, to be run again on other weights.
  void GiveWay();
  // All norms, in model order. Only once they all are in.
  std::vector<at::Tensor> Norms() const;
  // First the decision, then the weights, which the leader asks for in between. Once it has, before the lane that
  // decides leaves, the run does not end without them.
  void Decide(const StepDecision& decision) { decision_ = decision; }
  void Grant();
  void ExpectGrant() { expects_grant_.store(true); }
  void EndValues();

  // --- Once they have left.

  // Why it stopped, or OK.
  absl::Status Result() const;
  // Whether it stopped only so that the weights could change.
  bool MustRunAgain() const;
  bool expects_grant() const { return expects_grant_.load(); }
  // Comes after Granted(), if that is to be expected.
  absl::Notification& gate() { return gate_; }

  // --- RunCoordinator.

  void Fail(absl::Status status) override;
  bool Stopped() const override;
  bool BeDue(int64_t now) override;
  void Leave(bool before_the_end) override;
  TiedGradients& ties() override { return ties_; }
  void EndTies() override;
  bool TiesAreIn() const override { return ties_missing_.load(std::memory_order_acquire) == 0; }
  void PutNorms(int stage, std::vector<at::Tensor> norms) override { norms_.at(stage) = std::move(norms); }
  void EndNorms() override;
  bool Granted() const override { return granted_.load(std::memory_order_acquire); }
  const StepDecision& decision() const override { return decision_; }

 private:
  void Wake();
  bool Cancelled() const { return cancel_ != nullptr && cancel_->cancelled(); }

  const std::function<void()> wake_;
  Followers followers_;
  std::atomic<bool> told_to_stop_ = false;
  std::atomic<bool> told_due_ = false;
  bool expects_values_ = false;
  bool steps_ = false;
  const std::shared_ptr<CancelToken> cancel_;
  std::function<void()> ended_;
  std::function<void()> decide_;
  InferenceTurns* turns_ = nullptr;
  std::shared_ptr<InferenceTicket> ticket_;

  FirstError error_;
  std::atomic<bool> gave_way_ = false;
  std::atomic<int> cut_short_ = 0;  // lanes that left before the end of their lists
  std::atomic<int> open_lanes_;     // and ranks

  TiedGradients ties_;
  std::atomic<int> ties_missing_ = 0;           // stages that have not put theirs in
  std::vector<std::vector<at::Tensor>> norms_;  // by stage
  std::atomic<int> norms_missing_ = 0;
  StepDecision decision_;  // written before `granted_` is set
  std::atomic<bool> expects_grant_ = false;
  std::atomic<bool> granted_ = false;
  absl::Notification gate_;
};

}  // namespace penstock
