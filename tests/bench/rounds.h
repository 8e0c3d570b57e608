#pragma once

// How benchmarks compare: every variant once per round, in an order that rotates; medians with their spread.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "tests/bench/workloads.h"

namespace penstock::bench {

[[noreturn]] inline void Die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(2);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(std::string(value.status().message()));
  return *std::move(value);
}

struct Spread {
  double least, median, most;
};

Spread Sorted(std::vector<double> values);

// Of a[i] / b[i], round by round.
Spread Ratio(const std::vector<double>& a, const std::vector<double>& b);

// One thing that is compared. `step` returns its seconds.
struct Variant {
  std::string name;
  std::function<double()> step;
  double predicted = 0;                  // seconds; 0: no prediction; a step may predict anew
  double ideal = 0;                      // times one core; 0: not a pipeline
  std::vector<double> seconds = {};      // by round
  std::vector<double> predictions = {};  // by round: what was predicted then
};

// After one round that warms up, unless every step warms up by itself.
void RunRounds(std::vector<Variant>& variants, int rounds, bool warm_up = true);

// So many devices, each pinned to one core; with more devices than cores they share them. Dies with fewer than two
// cores.
std::vector<Device> OneCoreDevices(int count);

// Profiled at that micro-batch size, nine repeats.
Pipeline::Options On(DevicePool& pool, int64_t rows);

ContributionRequest Request(const Workload& workload);

// Keeps the cores from halting: one thread per core that only runs where nobody else wants to (SCHED_IDLE). On a
// virtual machine a halted core takes tens of microseconds to wake, which would count as the engine's. The threads do
// not pause: a host takes the core away from a guest that pauses in a loop, and it comes back cold.
class AwakeCores {
 public:
  AwakeCores();
  ~AwakeCores();

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::unique_ptr<Thread>> threads_;
};

// What the daemon's main does first: locks are not checked for deadlocks. Its heap (server/heap.cc) is linked.
void BeLikeTheDaemon();

}  // namespace penstock::bench
