#pragma once

#include <atomic>

namespace penstock {

// Asks a run to stop at its next action. Any thread; once set, it stays set.
class CancelToken {
 public:
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancelled_ = false;
};

}  // namespace penstock
