#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/exec/rank_commands.h"
#include "engine/exec/run_coordinator.h"
#include "engine/filling/inference_turns.h"

namespace penstock {

// A run's coordinator on a rank that does not lead it: collects what this rank's stages have, tells the leader once when
// all of them have it, and passes on what the leader says.
//
// Owns:      what the stages put in, and the decision.
// Threads:   as RunCoordinator; what the leader says, from any thread.
// Lifecycle: hooks run on the threads of lanes, and must outlive the run's end.
// Fails:     what `failed` throws is lost, and the run stops; `left` must throw nothing; what the others throw is an error
//            of the action in which they are called.
class FollowingCoordinator final : public RunCoordinator {
 public:
  struct Hooks {
    std::function<void()> wake;  // makes every lane of this rank look again
    std::function<void(const absl::Status&)> failed;
    std::function<void(TiedGradients own)> has_ties;
    std::function<void(std::vector<NormsOfStage>)> has_norms;
    std::function<void(bool before_the_end)> left;  // once, by the last lane
  };
  // `stages` are this rank's. `ties`: empty places of all uses, of a run with a step. `ticket`: of an inference, or null.
  FollowingCoordinator(int lanes, std::vector<int> stages, TiedGradients ties, std::shared_ptr<InferenceTicket> ticket,
                       Hooks hooks);

  // --- What the leader says.

  void Stop();
  // Of all uses, once, when this rank has told its own; those stay. Fails: RANK_MESSAGE.
  absl::Status PutTies(const TiedGradients& ties);
  // Once, when this rank has told its norms. Fails: RANK_MESSAGE.
  absl::Status Grant(const StepDecision& decision);
  void PutDue();
  const std::shared_ptr<InferenceTicket>& ticket() const { return ticket_; }

  // --- RunCoordinator.

  void Fail(absl::Status status) override;
  bool Stopped() const override { return stopped_.load(std::memory_order_acquire); }
  bool BeDue(int64_t) override { return ticket_->due.load(std::memory_order_acquire); }  // the leader says when
  void Leave(bool before_the_end) override;
  TiedGradients& ties() override { return ties_; }
  void EndTies() override;
  bool TiesAreIn() const override { return ties_in_.load(std::memory_order_acquire); }
  void PutNorms(int stage, std::vector<at::Tensor> norms) override;
  void EndNorms() override;
  bool Granted() const override { return granted_.load(std::memory_order_acquire); }
  const StepDecision& decision() const override { return decision_; }

 private:
  const Hooks hooks_;
  const std::shared_ptr<InferenceTicket> ticket_;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> cut_short_ = false;
  std::atomic<int> open_lanes_;

  TiedGradients ties_;
  std::atomic<int> ties_missing_;  // stages that have not put theirs in
  std::atomic<bool> ties_in_;
  std::vector<NormsOfStage> norms_;  // each entry has one writer
  std::atomic<int> norms_missing_;
  StepDecision decision_;  // written before `granted_` is set
  std::atomic<bool> granted_ = false;
};

}  // namespace penstock
