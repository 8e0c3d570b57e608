#include "engine/exec/weights_gate.h"

#include <utility>

#include "engine/base/check.h"

namespace penstock {

void WeightsGate::Enter(Visit visit) {
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK((writer_ ? queue_ : open_).insert(visit).second);
    if (writer_) return;
  }
  visit->Start();
}

void WeightsGate::Leave(const Visit& visit) {
  std::function<void()> granted;
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(open_.erase(visit) == 1);
    if (open_.empty()) granted = std::exchange(granted_, nullptr);
  }
  if (granted) granted();
}

void WeightsGate::Reenter(const Visit& visit) {
  std::function<void()> granted;
  {
    absl::MutexLock lock(&mu_);
    if (writer_) {
      PENSTOCK_CHECK(open_.erase(visit) == 1);
      PENSTOCK_CHECK(queue_.insert(visit).second);
      if (open_.empty()) granted = std::exchange(granted_, nullptr);
      if (!granted) return;
    }
  }
  granted ? granted() : visit->Start();
}

void WeightsGate::RequestExclusive(std::function<void()> granted) {
  std::vector<Visit> open;
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(!writer_);
    writer_ = true;
    if (!open_.empty()) {
      granted_ = std::move(granted);
      granted = nullptr;
      open.assign(open_.begin(), open_.end());
    }
  }
  for (const Visit& visit : open) visit->GiveWay();
  if (granted) granted();
}

void WeightsGate::ReleaseExclusive() {
  std::vector<Visit> ready;
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(writer_);
    writer_ = false;
    ready.assign(queue_.begin(), queue_.end());
    open_.merge(queue_);
  }
  for (const Visit& visit : ready) visit->Start();
}

}  // namespace penstock
