#pragma once

// Load on a daemon: callers that go on as soon as they are answered, or calls that come at a rate whatever the answers
// do.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"

namespace penstock {

// How much load, and how long.
struct LoadOptions {
  int callers = 1;       // closed loop: calls in flight; open loop: how many may be
  double rate = 0;       // calls per second; 0: closed loop
  bool poisson = false;  // open loop: random gaps instead of even ones
  uint64_t seed = 1;     // of the gaps
  double warm_up_seconds = 1;
  double window_seconds = 2;
  int max_windows = 10;
  double percentile = 95;  // what must be stable, beside throughput
  double stability = 0.1;  // by how much of their mean the last three windows may differ from it
};

// The calls that ended within a window.
struct LoadWindow {
  double seconds = 0;
  int64_t failures = 0;
  std::vector<double> latencies;  // of those that went well, ascending, in seconds

  double throughput() const { return seconds > 0 ? static_cast<double>(latencies.size()) / seconds : 0; }
};

// The value that `percent` of the sorted values do not exceed (nearest rank); 0 if there are none.
double Percentile(const std::vector<double>& ascending, double percent);

// Whether throughput and the percentile of the last three windows lie near their means. Fewer windows are never stable.
bool IsStable(const std::vector<LoadWindow>& windows, const LoadOptions& options);

struct LoadResult {
  LoadWindow measured;  // the last three windows together
  int windows = 0;
  bool stable = false;
  absl::Status first_failure;
};

// What is called. `after` gets what `call` returned, outside of the measured time.
struct LoadWork {
  std::function<absl::StatusOr<std::string>()> call;
  std::function<void(const std::string&)> after;
};

// Runs the load until it is stable, the windows are used up, or `stopped` says so. A window lasts until a call has
// ended in it.
//
// Model:     A thread for each caller. In an open loop a call's latency counts from the instant at which it was due, so
//            that a slow server can't hide calls that it kept from being made.
// Threads:   `call` and `after` run on the callers' threads, all at once; blocks its own.
LoadResult RunLoad(const LoadOptions& options, const LoadWork& work, Clock* clock,
                   const std::function<bool()>& stopped);

}  // namespace penstock
