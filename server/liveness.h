#pragma once

// Tells a daemon that works from one that stands still, or has lost a device.

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/timer_queue.h"
#include "engine/observe/metrics_registry.h"

namespace penstock {

// Looks now and then whether every pipeline with a run open gets on.
//
// Model:     A pipeline stands still if a run is open and none of its lanes has ended an action for
//            `patience`. One such pipeline makes the daemon not live; progress makes it live again. A lost device makes
//            it not live for good: only a new process can use it again.
// Owns:      one timer. Registry, timers and clock outlive it.
// Threads:   `told` runs on the timers' thread at each change.
// Lifecycle: watches from construction to destruction.
class LivenessWatch {
 public:
  struct Options {
    absl::Duration patience = absl::Seconds(60);
    absl::Duration interval = absl::Seconds(5);
    std::function<std::string()> lost_device = {};  // the name of one, or ""
  };

  LivenessWatch(const MetricsRegistry* registry, TimerQueue* timers, Options options, std::function<void(bool)> told);
  ~LivenessWatch();

  // Why the daemon is not live: "gpt stands still", "device cuda:0 is lost"; or "".
  std::string Problem() const;

 private:
  // The first pipeline that stands still, or "".
  std::string Stalled() const;
  void Look() ABSL_LOCKS_EXCLUDED(mu_);
  void Compare() ABSL_LOCKS_EXCLUDED(mu_);  // with how it was, and tells a change
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MetricsRegistry* const registry_;
  TimerQueue* const timers_;
  const Options options_;
  const std::function<void(bool)> told_;

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool pending_ ABSL_GUARDED_BY(mu_) = false;  // a look will run, or runs
  bool live_ ABSL_GUARDED_BY(mu_) = true;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

}  // namespace penstock
