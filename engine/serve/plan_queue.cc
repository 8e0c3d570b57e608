#include "engine/serve/plan_queue.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace penstock {

absl::Status PlanQueue::Post(const std::string& caller, std::shared_ptr<CancelToken> cancel,
                             std::function<void()> search) {
  absl::MutexLock lock(&mu_);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!it->cancel->cancelled()) {
      ++it;
      continue;
    }
    bounds_.Remove(it->caller, 0);
    thread_.Post(std::move(it->search));
    it = waiting_.erase(it);
  }
  PENSTOCK_RETURN_IF_ERROR(bounds_.Check(caller, 0));
  bounds_.Add(caller, 0);
  waiting_.push_back({caller, std::move(cancel), std::move(search)});
  thread_.Post([this] { RunNext(); });
  return absl::OkStatus();
}

void PlanQueue::RunNext() {
  Waiting next;
  {
    absl::MutexLock lock(&mu_);
    if (waiting_.empty()) return;  // it was given up, and its place with it
    next = std::move(waiting_.front());
    waiting_.pop_front();
    bounds_.Remove(next.caller, 0);
  }
  next.search();
}

}  // namespace penstock
