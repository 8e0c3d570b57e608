#include "engine/exec/weights_gate.h"

#include <utility>

#include "engine/base/check.h"

namespace penstock {

void WeightsGate::Enter(std::function<void()> start) {
  {
    absl::MutexLock lock(&mu_);
    if (writer_) {
      queue_.push_back(std::move(start));
      return;
    }
    ++open_;
  }
  start();
}

void WeightsGate::Leave() {
  std::function<void()> granted;
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(open_ > 0);
    if (--open_ > 0) return;
    granted = std::exchange(granted_, nullptr);
  }
  if (granted) granted();
}

void WeightsGate::RequestExclusive(std::function<void()> granted) {
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(!writer_);
    writer_ = true;
    if (open_ > 0) {
      granted_ = std::move(granted);
      return;
    }
  }
  granted();
}

void WeightsGate::ReleaseExclusive() {
  std::deque<std::function<void()>> ready;
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(writer_);
    writer_ = false;
    ready.swap(queue_);
    open_ += static_cast<int>(ready.size());
  }
  for (auto& start : ready) start();
}

}  // namespace penstock
