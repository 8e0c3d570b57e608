#include "engine/exec/weights_gate.h"

#include <utility>

#include "engine/base/check.h"

namespace penstock {

void WeightsGate::Enter(Visit visit) {
  Row one;  // takes the memory
  one.insert(visit);
  {
    absl::MutexLock lock(&mu_);
    (writer_ ? queue_ : open_).merge(one);
    PENSTOCK_CHECK(one.empty());
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
      Row::node_type place = open_.extract(visit);
      PENSTOCK_CHECK(!place.empty());
      PENSTOCK_CHECK(queue_.insert(std::move(place)).inserted);
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
    open.assign(open_.begin(), open_.end());  // takes the memory
    writer_ = true;
    if (!open.empty()) granted_ = std::exchange(granted, nullptr);
  }
  for (const Visit& visit : open) visit->GiveWay();
  if (granted) granted();
}

void WeightsGate::ReleaseExclusive() {
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(writer_);
    writer_ = false;
  }
  while (true) {
    Visit visit;
    {
      absl::MutexLock lock(&mu_);
      if (writer_ || queue_.empty()) return;  // another writer's release starts the others
      Row::node_type first = queue_.extract(queue_.begin());
      visit = first.value();
      open_.insert(std::move(first));
    }
    visit->Start();
  }
}

}  // namespace penstock
