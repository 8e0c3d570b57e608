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

CallPointer CallerTurns::Next(absl::FunctionRef<bool(const Call&)> may_start) const {
  const Waiting* next = nullptr;
  int64_t turn = 0;
  for (const auto& [name, caller] : callers_) {
    const auto starts = [&](const Waiting& one) { return may_start(*one.call); };
    const auto found = std::find_if(caller.waiting.begin(), caller.waiting.end(), starts);
    if (found == caller.waiting.end()) continue;
    const bool first = found == caller.waiting.begin();
    const int64_t its = first ? found->call->turn : EndOf(caller, *found->call);
    if (next != nullptr && (its > turn || (its == turn && found->number > next->number))) continue;
    next = &*found;
    turn = its;
  }
  return next == nullptr ? nullptr : next->call;
}

void CallerTurns::Start(const CallPointer& call) {
  Caller& caller = callers_.at(call->context.caller);
  std::deque<Waiting>& waiting = caller.waiting;
  const auto found = std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& one) { return one.call == call; });
  const bool first = found == waiting.begin();
  if (!first) call->turn = EndOf(caller, *call);
  // What has passed the first one counts all the same.
  caller.end = std::max(call->turn, (caller.running > 0 ? caller.end : 0) + CostOf(*call));
  waiting.erase(found);
  ++caller.running;
  if (first) GiveTurn(caller);  // who is passed keeps its turn
}

void CallerTurns::End(const CallPointer& call) {
  const auto caller = callers_.find(call->context.caller);
  now_ = std::max(now_, call->turn);
  --caller->second.running;
  ForgetIfIdle(caller);
}

void CallerTurns::GiveTurn(const Caller& caller) const {
  if (!caller.waiting.empty()) caller.waiting.front().call->turn = EndOf(caller, *caller.waiting.front().call);
}

int64_t CallerTurns::EndOf(const Caller& caller, const Call& call) const {
  return (caller.running > 0 ? std::max(now_, caller.end) : now_) + CostOf(call);
}

void CallerTurns::ForgetIfIdle(Callers::iterator caller) {
  if (caller->second.waiting.empty() && caller->second.running == 0) callers_.erase(caller);
}

}  // namespace penstock
