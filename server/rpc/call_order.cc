#include "server/rpc/call_order.h"

#include <utility>

namespace penstock {

CallOrder::WaitId CallOrder::Add(Key predecessor, std::function<void()> go) {
  absl::MutexLock lock(&mu_);
  const WaitId id = ++last_;
  by_predecessor_.emplace(predecessor, id);
  waiting_.emplace(id, Waiting{std::move(predecessor), std::move(go)});
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

void CallOrder::Accepted(const Key& call) {
  std::vector<std::function<void()>> ready;
  {
    absl::MutexLock lock(&mu_);
    const auto [begin, end] = by_predecessor_.equal_range(call);
    for (auto it = begin; it != end; ++it) {
      const auto found = waiting_.find(it->second);
      ready.push_back(std::move(found->second.go));
      waiting_.erase(found);
    }
    by_predecessor_.erase(begin, end);
  }
  for (const auto& go : ready) go();
}

}  // namespace penstock
