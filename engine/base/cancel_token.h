#pragma once

#include <atomic>

namespace penstock {

// Asks a run to stop at its next action.
//
// Owns:      nothing; the caller that cancels and the thread that runs share it.
// Threads:   any method from any thread, without a lock. What was written before Cancel() is seen by a thread
//            that sees it cancelled.
// Lifecycle: once cancelled it stays so: one token per call.
class CancelToken {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_ = false;
};

}  // namespace penstock
