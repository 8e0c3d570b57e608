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
    Unready(call);
  };
  if (call->guarded_.inputs_ready) SetReady(call);
  bounds_.Add(call->context.caller, call->inputs.inline_bytes());
  std::move(undo).Cancel();
}

void InferenceQueue::SetReady(const CallPointer& call) {
  const auto turns = turns_.try_emplace(call->priority()).first;
  absl::Cleanup undo = [&] {
    if (turns->second.idle()) turns_.erase(turns);
  };
  turns->second.Add(call);
  std::move(undo).Cancel();
  ++ready_;
}

void InferenceQueue::Remove(const CallPointer& call) {
  Unready(call);
  Leave(call);
}

void InferenceQueue::Unready(const CallPointer& call) {
  const auto turns = turns_.find(call->priority());
  if (turns == turns_.end() || !turns->second.Remove(call)) return;
  --ready_;
  if (turns->second.idle()) turns_.erase(turns);
}

void InferenceQueue::Leave(const CallPointer& call) {
  bounds_.Remove(call->context.caller, call->inputs.inline_bytes());
  std::erase(waiting_, call);
}

CallPointer InferenceQueue::Start() {
  CallPointer call = Next();
  running_.insert(call);  // what may fail comes first
  turns_.at(call->priority()).Start(call);
  --ready_;
  Leave(call);
  call->guarded_.Enter(Call::Phase::kRunning);
  return call;
}

void InferenceQueue::EndRun(const CallPointer& call) {
  running_.erase(call);
  const auto turns = turns_.find(call->priority());
  turns->second.End(call);
  if (turns->second.idle()) turns_.erase(turns);
}

CallPointer InferenceQueue::Next() const {
  const int64_t quarter = CallerShare(in_flight_, /*others=*/true);
  if (running() >= in_flight_ + quarter) return nullptr;
  std::map<std::string, int64_t> urgent;  // runs with a priority, by each caller that has runs
  for (const CallPointer& running : running_) urgent[running->context.caller] += running->priority() > 0 ? 1 : 0;
  const auto may_start = [&](const std::string& caller, bool bounded) {
    const auto own = urgent.find(caller);
    return own == urgent.end() || (has_place() && (!bounded || own->second < quarter));
  };
  for (const bool shares : {true, false}) {  // where nobody else can start, whoever can
    for (const auto& [priority, turns] : turns_) {
      const bool bounded = shares && priority > 0;
      CallPointer next = turns.Next([&](const std::string& caller) { return may_start(caller, bounded); });
      if (next != nullptr) return next;
    }
  }
  return nullptr;
}

}  // namespace penstock
