#include "engine/handles/device_budget.h"

#include <utility>

#include "engine/observe/metrics.h"

namespace penstock {

struct DeviceBudget::Sums {
  absl::Mutex mu;
  std::map<std::string, int64_t> bytes ABSL_GUARDED_BY(mu);
  ServerMetrics* metrics ABSL_GUARDED_BY(mu) = nullptr;

  // All of them, or none.
  bool Add(const std::vector<Place>& places, const std::map<std::string, int64_t>& limits) {
    absl::MutexLock lock(&mu);
    for (const Place& place : places) {
      const auto limit = limits.find(place.device);
      if (limit != limits.end() && place.bytes > limit->second - bytes[place.device]) return false;
    }
    for (const Place& place : places) Change(bytes[place.device], place.bytes);
    return true;
  }
  void Remove(const std::vector<Place>& places) {
    absl::MutexLock lock(&mu);
    for (const Place& place : places) Change(bytes.find(place.device)->second, -place.bytes);
  }

 private:
  void Change(int64_t& sum, int64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    sum += more;
    if (metrics != nullptr) metrics->handle_bytes[HandleTier::kDevice].Add(static_cast<double>(more));
  }
};

// Values with their places in the sums, which they leave at their end.
struct DeviceBudget::Counted {
  Counted(HeldValues values, std::vector<Place> its_places, std::shared_ptr<Sums> its_sums)
      : held(std::move(values)), places(std::move(its_places)), sums(std::move(its_sums)) {}
  Counted(const Counted&) = delete;
  ~Counted() {
    if (counted) sums->Remove(places);
  }

  const HeldValues held;
  const std::vector<Place> places;
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

std::vector<DeviceBudget::Place> DeviceBudget::PlacesOf(const HeldValues& held) {
  std::map<std::string, int64_t> bytes;
  for (const NamedTensor& tensor : held.tensors) {
    if (!tensor.tensor.is_cpu()) bytes[tensor.tensor.device().str()] += static_cast<int64_t>(tensor.tensor.nbytes());
  }
  std::vector<Place> places;
  for (const auto& [device, on_it] : bytes) {
    if (on_it > 0) places.push_back({.device = device, .bytes = on_it});
  }
  return places;
}

std::optional<DeviceBudget::Place> DeviceBudget::Excess(const std::vector<Place>& places) const {
  for (const Place& place : places) {
    const auto limit = limits_.find(place.device);
    if (limit == limits_.end()) continue;
    const int64_t excess = BytesOn(place.device) - (limit->second - place.bytes);
    if (excess > 0) return Place{.device = place.device, .bytes = excess};
  }
  return std::nullopt;
}

std::shared_ptr<const HeldValues> DeviceBudget::Count(const HeldValues& held, const std::vector<Place>& places) {
  const auto counted = std::make_shared<Counted>(held, places, sums_);  // before it is counted
  if (!sums_->Add(places, limits_)) return nullptr;
  counted->counted = true;
  return {counted, &counted->held};
}

int64_t DeviceBudget::BytesOn(const std::string& device) const {
  absl::MutexLock lock(&sums_->mu);
  const auto found = sums_->bytes.find(device);
  return found == sums_->bytes.end() ? 0 : found->second;
}

}  // namespace penstock
