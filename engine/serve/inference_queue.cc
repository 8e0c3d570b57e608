#include "engine/serve/inference_queue.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/caller_share.h"

namespace penstock {

absl::Status InferenceQueue::CheckNew(const Call& call) const {
  return bounds_.Check(call.context.caller, call.inputs.inline_bytes());
}

void InferenceQueue::Add(const CallPointer& call) {
  waiting_.push_back(call);
  absl::Cleanup undo = [&] {
    waiting_.pop_back();
    std::erase(ready_, call);
    turns_.Withdraw(call->context.caller, call->turn);
  };
  if (call->guarded_.inputs_ready) SetReady(call);
  bounds_.Add(call->context.caller, call->inputs.inline_bytes());
  std::move(undo).Cancel();
}

void InferenceQueue::SetReady(const CallPointer& call) {
  // Its rows are not known yet where an input came after the call; each micro-batch has one at least.
  call->turn = turns_.Add(call->context.caller, std::max(call->rows, call->queue_weight));
  const auto later = std::find_if(ready_.begin(), ready_.end(), [&](const CallPointer& other) {
    return other->priority() != call->priority() ? other->priority() < call->priority()
                                                 : other->turn.start > call->turn.start;
  });
  ready_.insert(later, call);
}

void InferenceQueue::Remove(const CallPointer& call) {
  turns_.Withdraw(call->context.caller, call->turn);
  Leave(call);
}

void InferenceQueue::Leave(const CallPointer& call) {
  bounds_.Remove(call->context.caller, call->inputs.inline_bytes());
  std::erase(waiting_, call);
  std::erase(ready_, call);
}

CallPointer InferenceQueue::Start() {
  CallPointer call = Next();
  running_.insert(call);  // what may fail comes first
  Leave(call);
  call->guarded_.Enter(Call::Phase::kRunning);
  return call;
}

void InferenceQueue::EndRun(const CallPointer& call) {
  running_.erase(call);
  turns_.Served(call->turn);
}

CallPointer InferenceQueue::Next() const {
  std::map<std::string, int64_t> urgent;  // runs with a priority, by caller
  for (const CallPointer& running : running_) {
    if (running->priority() > 0) ++urgent[running->context.caller];
  }
  const int64_t most = CallerShare(in_flight_, /*others=*/true);
  const auto may_start = [&](const CallPointer& call) {
    return call->priority() <= 0 || urgent[call->context.caller] < most;
  };
  const auto found = std::find_if(ready_.begin(), ready_.end(), may_start);
  return found == ready_.end() ? ready_.front() : *found;
}

}  // namespace penstock
