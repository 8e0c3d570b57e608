#include "engine/handles/device_budget.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/observe/metrics.h"

namespace penstock {

struct DeviceBudget::Sums {
  absl::Mutex mu;
  std::map<std::string, int64_t> bytes ABSL_GUARDED_BY(mu);
  ServerMetrics* metrics ABSL_GUARDED_BY(mu) = nullptr;

  bool Add(const Place& place, int64_t limit) {
    absl::MutexLock lock(&mu);
    int64_t& sum = bytes[place.device];
    if (place.bytes > limit - sum) return false;
    Change(sum, place.bytes);
    return true;
  }
  void Remove(const Place& place) {
    absl::MutexLock lock(&mu);
    Change(bytes.find(place.device)->second, -place.bytes);
  }

 private:
  void Change(int64_t& sum, int64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    sum += more;
    if (metrics != nullptr) metrics->handle_bytes[HandleTier::kDevice].Add(static_cast<double>(more));
  }
};

// Values with their place in the sums, which they leave at their end.
struct DeviceBudget::Counted {
  Counted(HeldValues values, Place its_place, std::shared_ptr<Sums> its_sums)
      : held(std::move(values)), place(std::move(its_place)), sums(std::move(its_sums)) {}
  Counted(const Counted&) = delete;
  ~Counted() {
    if (counted) sums->Remove(place);
  }

  const HeldValues held;
  const Place place;
  const std::shared_ptr<Sums> sums;
  bool counted = false;
};

DeviceBudget::DeviceBudget(std::map<std::string, int64_t> limits, ServerMetrics* metrics)
    : limits_(std::move(limits)), sums_(std::make_shared<Sums>()) {
  if (metrics == nullptr) return;
  {
    absl::MutexLock lock(&sums_->mu);
    sums_->metrics = metrics;
  }
  int64_t all = 0;
  for (const auto& [device, limit] : limits_) all += limit;
  metrics->handle_limit_bytes[HandleTier::kDevice].Set(static_cast<double>(all));
}

DeviceBudget::~DeviceBudget() {
  absl::MutexLock lock(&sums_->mu);
  sums_->metrics = nullptr;
}

DeviceBudget::Place DeviceBudget::PlaceOf(const HeldValues& held) {
  Place place;
  for (const NamedTensor& tensor : held.tensors) {
    if (tensor.tensor.is_cpu()) continue;
    if (place.device.empty()) place.device = tensor.tensor.device().str();
    place.bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  }
  return place;
}

int64_t DeviceBudget::LimitOf(const Place& place) const {
  const auto limit = limits_.find(place.device);
  return limit == limits_.end() ? std::numeric_limits<int64_t>::max() : limit->second;
}

int64_t DeviceBudget::Excess(const Place& place) const {
  return std::max(int64_t{0}, BytesOn(place.device) - (LimitOf(place) - place.bytes));
}

std::shared_ptr<const HeldValues> DeviceBudget::Count(const HeldValues& held, const Place& place) {
  const auto counted = std::make_shared<Counted>(held, place, sums_);  // before it is counted
  if (!sums_->Add(place, LimitOf(place))) return nullptr;
  counted->counted = true;
  return {counted, &counted->held};
}

int64_t DeviceBudget::BytesOn(const std::string& device) const {
  absl::MutexLock lock(&sums_->mu);
  const auto found = sums_->bytes.find(device);
  return found == sums_->bytes.end() ? 0 : found->second;
}

}  // namespace penstock
