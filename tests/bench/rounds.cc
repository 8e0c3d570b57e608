#include "tests/bench/rounds.h"

#include <sched.h>

#include <algorithm>

#include "absl/synchronization/mutex.h"

namespace penstock::bench {

Spread Sorted(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

Spread Ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t r = 0; r < a.size(); ++r) ratios.push_back(a[r] / b[r]);
  return Sorted(std::move(ratios));
}

void RunRounds(std::vector<Variant>& variants, int rounds, bool warm_up) {
  for (int round = warm_up ? -1 : 0; round < rounds; ++round) {  // round -1 warms up
    for (size_t i = 0; i < variants.size(); ++i) {
      Variant& variant = variants[(i + static_cast<size_t>(round + 1)) % variants.size()];
      const double seconds = variant.step();
      if (round < 0) continue;
      variant.seconds.push_back(seconds);
      variant.predictions.push_back(variant.predicted);
    }
  }
}

std::vector<Device> OneCoreDevices(int count) {
  const std::vector<int> usable = UsableCores();
  if (usable.size() < 2) Die("needs two cores");
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    devices.push_back({"cpu:" + std::to_string(i), {usable[i % usable.size()]}, 0});
  }
  return devices;
}

Pipeline::Options On(DevicePool& pool, int64_t rows) {
  Pipeline::Options options;
  options.devices = &pool;
  options.profile.rows = rows;
  options.profile.repeats = 9;
  return options;
}

ContributionRequest Request(const Workload& workload) {
  ContributionRequest request;
  request.inputs = workload.inputs;
  request.target = workload.target;
  return request;
}

AwakeCores::AwakeCores() {
  for (const int core : UsableCores()) {
    threads_.push_back(std::make_unique<Thread>(
        "ps-awake",
        [this] {
          const sched_param lowest{};
          sched_setscheduler(0, SCHED_IDLE, &lowest);
          while (!stop_.load(std::memory_order_relaxed)) {
          }
        },
        std::vector<int>{core}));
  }
}

AwakeCores::~AwakeCores() { stop_ = true; }

void BeLikeTheDaemon() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace penstock::bench
