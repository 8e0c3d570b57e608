#include "engine/handles/device_budget.h"

#include <utility>

#include "engine/observe/metrics.h"

namespace penstock {

struct DeviceBudget::Sums {
  absl::Mutex mu;
  std::map<std::string, int64_t> bytes ABSL_GUARDED_BY(mu);
  ServerMetrics* metrics = nullptr;

  void Add(const Place& place, int64_t sign) {
    absl::MutexLock lock(&mu);
    bytes[place.device] += sign * place.bytes;  // its node is there: of a sum that falls, from when it rose
    if (metrics != nullptr) metrics->handle_bytes[HandleTier::kDevice].Add(static_cast<double>(sign * place.bytes));
  }
};

// Values with their place in the sums, which they leave at their end.
struct DeviceBudget::Counted {
  Counted(HeldValues values, Place its_place, std::shared_ptr<Sums> its_sums)
      : held(std::move(values)), place(std::move(its_place)), sums(std::move(its_sums)) {
    sums->Add(place, 1);
  }
  Counted(const Counted&) = delete;
  ~Counted() { sums->Add(place, -1); }

  const HeldValues held;
  const Place place;
  const std::shared_ptr<Sums> sums;
};

DeviceBudget::DeviceBudget(std::map<std::string, int64_t> limits, ServerMetrics* metrics)
    : limits_(std::move(limits)), sums_(std::make_shared<Sums>()) {
  sums_->metrics = metrics;
  if (metrics == nullptr) return;
  int64_t all = 0;
  for (const auto& [device, limit] : limits_) all += limit;
  metrics->handle_limit_bytes[HandleTier::kDevice].Set(static_cast<double>(all));
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

int64_t DeviceBudget::Excess(const Place& place) const {
  const auto limit = limits_.find(place.device);
  if (limit == limits_.end()) return 0;
  if (place.bytes > limit->second) return -1;
  const int64_t above = BytesOn(place.device) + place.bytes - limit->second;
  return above > 0 ? above : 0;
}

std::shared_ptr<const HeldValues> DeviceBudget::Count(HeldValues held) {
  Place place = PlaceOf(held);
  if (place.bytes == 0) return std::make_shared<const HeldValues>(std::move(held));
  const auto counted = std::make_shared<const Counted>(std::move(held), std::move(place), sums_);
  return {counted, &counted->held};
}

int64_t DeviceBudget::BytesOn(const std::string& device) const {
  absl::MutexLock lock(&sums_->mu);
  const auto found = sums_->bytes.find(device);
  return found == sums_->bytes.end() ? 0 : found->second;
}

}  // namespace penstock
