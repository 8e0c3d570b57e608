#include "server/rpc/call_order.h"

#include <deque>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/guard.h"

namespace penstock {

CallOrder::WaitId CallOrder::Add(Key predecessor, std::function<void()> go) {
  absl::MutexLock lock(&mu_);
  const WaitId id = ++last_;
  const auto listed = by_predecessor_.emplace(predecessor, id);
  absl::Cleanup undo = [&] {
    mu_.AssertHeld();
    by_predecessor_.erase(listed);
  };
  waiting_.emplace(id, Waiting{std::move(predecessor), std::move(go)});
  std::move(undo).Cancel();
  return id;
}

bool CallOrder::Remove(WaitId id) {
  std::function<void()> go;  // its captures may hold a call: they go after the lock
  absl::MutexLock lock(&mu_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  const auto [begin, end] = by_predecessor_.equal_range(found->second.predecessor);
  for (auto it = begin; it != end; ++it) {
    if (it->second == id) {
      by_predecessor_.erase(it);
      break;
    }
  }
  go.swap(found->second.go);
  waiting_.erase(found);
  return true;
}

std::vector<std::function<void()>> CallOrder::TakeFollowers(const Key& call) {
  std::vector<std::function<void()>> ready;
  absl::MutexLock lock(&mu_);
  const auto [begin, end] = by_predecessor_.equal_range(call);
  ready.reserve(std::distance(begin, end));
  for (auto it = begin; it != end; ++it) {
    const auto found = waiting_.find(it->second);
    ready.push_back(std::move(found->second.go));
    waiting_.erase(found);
  }
  by_predecessor_.erase(begin, end);
  return ready;
}

void CallOrder::Accepted(const Key& call) {
  thread_local std::deque<std::function<void()>>* running =
      nullptr;  // what this thread has yet to run, in a loop below
  std::vector<std::function<void()>> ready = TakeFollowers(call);
  const auto begin = std::make_move_iterator(ready.begin());
  const auto end = std::make_move_iterator(ready.end());
  if (running != nullptr) {
    running->insert(running->end(), begin, end);
    return;
  }
  std::deque<std::function<void()>> own(begin, end);
  running = &own;
  const absl::Cleanup leave = [] { running = nullptr; };
  while (!own.empty()) {
    const std::function<void()> go = std::move(own.front());
    own.pop_front();
    Guarded("a call that waited for another", go)
        .IgnoreError();  // its caller hears of it when `go` lets go of the call
  }
}

}  // namespace penstock
