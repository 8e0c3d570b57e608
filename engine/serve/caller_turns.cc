#include "engine/serve/caller_turns.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"

namespace penstock {
namespace {

// What any call counts at most: more than fits into a message, unless its rows are empty.
constexpr int64_t kMaxRows = 1 << 20;

// The rows are not known yet where an input came after the call; each micro-batch has one at least.
int64_t CostOf(const Call& call) { return std::clamp(std::max(call.rows, call.queue_weight), int64_t{1}, kMaxRows); }

}  // namespace

void CallerTurns::Add(const CallPointer& call) {
  const auto caller = callers_.try_emplace(call->context.caller).first;
  absl::Cleanup undo = [&] { ForgetIfIdle(caller); };
  caller->second.waiting.push_back({call, added_});
  std::move(undo).Cancel();
  ++added_;
  if (caller->second.waiting.size() == 1) GiveTurn(caller->second);
}

bool CallerTurns::Remove(const CallPointer& call) {
  const auto caller = callers_.find(call->context.caller);
  if (caller == callers_.end()) return false;
  std::deque<Waiting>& waiting = caller->second.waiting;
  const auto found = std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& one) { return one.call == call; });
  if (found == waiting.end()) return false;
  const bool first = found == waiting.begin();
  waiting.erase(found);
  if (first) GiveTurn(caller->second);
  ForgetIfIdle(caller);
  return true;
}

CallPointer CallerTurns::Next(const std::function<bool(const std::string&)>& may_start) const {
  const Waiting* next = nullptr;
  for (const auto& [name, caller] : callers_) {
    if (caller.waiting.empty() || !may_start(name)) continue;
    const Waiting& first = caller.waiting.front();
    if (next != nullptr && first.call->turn > next->call->turn) continue;
    if (next != nullptr && first.call->turn == next->call->turn && first.number > next->number) continue;
    next = &first;
  }
  return next == nullptr ? nullptr : next->call;
}

void CallerTurns::Start(const CallPointer& call) {
  Caller& caller = callers_.at(call->context.caller);
  caller.waiting.pop_front();
  ++caller.running;
  caller.end = call->turn;
  GiveTurn(caller);
}

void CallerTurns::End(const CallPointer& call) {
  const auto caller = callers_.find(call->context.caller);
  now_ = std::max(now_, call->turn);
  --caller->second.running;
  ForgetIfIdle(caller);
}

void CallerTurns::GiveTurn(const Caller& caller) const {
  if (caller.waiting.empty()) return;
  const int64_t behind = caller.running > 0 ? std::max(now_, caller.end) : now_;
  caller.waiting.front().call->turn = behind + CostOf(*caller.waiting.front().call);
}

void CallerTurns::ForgetIfIdle(Callers::iterator caller) {
  if (caller->second.waiting.empty() && caller->second.running == 0) callers_.erase(caller);
}

}  // namespace penstock
