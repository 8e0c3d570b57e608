#pragma once

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// Keeps the weights still while inference runs are open, and keeps inference out while they change.
//
// Model:     a count of open inference runs, at most one writer, and a queue of runs that came after the writer asked.
// Threads:   any method from any thread. Closures run without the lock, on the thread whose call let them go.
// Lifecycle: Enter() ... Leave() for each inference; RequestExclusive() ... ReleaseExclusive() for each change.
class WeightsGate {
 public:
  // Runs `start` now, or when the writer has finished.
  void Enter(std::function<void()> start);
  void Leave();

  // Runs `granted` as soon as no inference is open. New ones wait from now on. At most one writer at a time.
  void RequestExclusive(std::function<void()> granted);
  void ReleaseExclusive();

 private:
  absl::Mutex mu_;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  bool writer_ ABSL_GUARDED_BY(mu_) = false;            // asked or granted
  std::function<void()> granted_ ABSL_GUARDED_BY(mu_);  // not yet granted
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
