#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace penstock {

// Asks a run to stop at its next action.
//
// Owns:      nothing; the caller that cancels and the thread that runs share it.
// Threads:   any method from any thread, without a lock. What was written before Cancel() is seen by a thread
//            that sees it cancelled.
// Lifecycle: once cancelled it stays so: one token per call. One over the tokens of several calls is cancelled with the
//            last of them.
class CancelToken {
 public:
  CancelToken() = default;
  explicit CancelToken(std::vector<std::shared_ptr<const CancelToken>> parts) : parts_(std::move(parts)) {}

  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const {
    if (cancelled_.load(std::memory_order_acquire)) return true;
    const auto is_cancelled = [](const auto& part) { return part->cancelled(); };
    return !parts_.empty() && std::all_of(parts_.begin(), parts_.end(), is_cancelled);
  }

 private:
  const std::vector<std::shared_ptr<const CancelToken>> parts_ = {};
  std::atomic<bool> cancelled_ = false;
};

}  // namespace penstock
