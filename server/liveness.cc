#include "server/liveness.h"

#include <algorithm>
#include <utility>

#include "engine/base/guard.h"
#include "engine/base/log.h"

namespace penstock {

LivenessWatch::LivenessWatch(const MetricsRegistry* registry, TimerQueue* timers, Options options,
                             std::function<void(bool)> told)
    : registry_(registry), timers_(timers), options_(options), told_(std::move(told)) {
  absl::MutexLock lock(&mu_);
  Schedule();
}

LivenessWatch::~LivenessWatch() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  if (timers_->Remove(timer_)) pending_ = false;
  // A look that can't be called back any more ends before its members go.
  mu_.Await(absl::Condition(
      +[](bool* pending) { return !*pending; }, &pending_));
}

void LivenessWatch::Schedule() {
  timer_ =
      timers_->Add(registry_->clock()->NowNanos() + absl::ToInt64Nanoseconds(options_.interval), [this] { Look(); });
  pending_ = true;  // not before: the destructor waits for it
}

std::string LivenessWatch::Stalled() const {
  const double now = absl::ToUnixNanos(registry_->clock()->WallNow()) * 1e-9;
  for (const auto& pipeline : registry_->Snapshot()) {
    double running = 0;
    for (size_t mode = 0; mode < kBatchModeNames.size(); ++mode) {
      running += pipeline->runs_active.at(mode).value();
    }
    if (running <= 0) continue;
    double last = 0;
    for (int lane = 0; lane < pipeline->lane_count(); ++lane) {
      last = std::max(last, pipeline->lane(lane).last_progress.seconds());
    }
    if (now - last > absl::ToDoubleSeconds(options_.patience)) return pipeline->name();
  }
  return "";
}

void LivenessWatch::Look() {
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) {
      pending_ = false;
      return;
    }
  }
  Guarded("the look for stalled pipelines", [this] { Compare(); }).IgnoreError();
  absl::MutexLock lock(&mu_);
  pending_ = false;
  if (!stopped_) Schedule();
}

std::string LivenessWatch::Problem() const {
  const std::string device = options_.lost_device ? options_.lost_device() : "";
  if (!device.empty()) return "device " + device + " is lost";
  const std::string stalled = Stalled();
  return stalled.empty() ? "" : stalled + " stands still";
}

void LivenessWatch::Compare() {
  const std::string problem = Problem();
  bool changed;
  {
    absl::MutexLock lock(&mu_);
    changed = live_ != problem.empty();
    live_ = problem.empty();
  }
  if (changed) {
    if (!problem.empty()) LogError("the daemon is not live", {{"problem", problem}});
    told_(problem.empty());
  }
}

}  // namespace penstock
