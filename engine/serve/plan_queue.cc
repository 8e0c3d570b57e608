#include "engine/serve/plan_queue.h"

#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"

namespace penstock {

absl::Status PlanQueue::Post(const std::string& caller, std::shared_ptr<CancelToken> cancel,
                             std::function<void()> search) {
  std::vector<std::function<void()>> given_up;
  const absl::Status posted = [&]() -> absl::Status {
    absl::MutexLock lock(&mu_);
    if (closed_) return Error(absl::StatusCode::kUnavailable, "DRAINING", "the daemon makes no new plans");
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (!it->cancel->cancelled()) {
        ++it;
        continue;
      }
      bounds_.Remove(it->caller, 0);
      given_up.push_back(std::move(it->search));
      it = waiting_.erase(it);
    }
    PENSTOCK_RETURN_IF_ERROR(bounds_.Check(caller, 0));
    bounds_.Add(caller, 0);
    waiting_.push_back({caller, std::move(cancel), std::move(search)});
    if (turns_ >= waiting_.size()) return absl::OkStatus();  // the turn of one that was given up
    ++turns_;
    thread_.Post([this] { RunNext(); });
    return absl::OkStatus();
  }();
  for (const auto& one : given_up) Guarded("a search that was given up", one).IgnoreError();
  return posted;
}

void PlanQueue::RunNext() {
  Waiting next;
  {
    absl::MutexLock lock(&mu_);
    --turns_;
    if (waiting_.empty()) return;  // it was given up, and its place with it
    next = std::move(waiting_.front());
    waiting_.pop_front();
    bounds_.Remove(next.caller, 0);
  }
  next.search();
}

void PlanQueue::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  thread_.Close();
}

}  // namespace penstock
