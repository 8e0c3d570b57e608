#include "engine/observe/metrics.h"

#include <algorithm>
#include <utility>

namespace penstock {

LaneMetrics::LaneMetrics(Clock* clock, LaneDescription description, int64_t trace_events)
    : clock(clock),
      description(std::move(description)),
      trace(trace_events),
      state(clock, &trace.states, this->description.lane) {
  last_progress.Mark(clock);
  ideal_bubble.Set(this->description.ideal_bubble);
  predicted_bubble.Set(this->description.predicted_bubble);
  for (const LinkDescription& link : this->description.links) links.push_back(std::make_unique<LinkMetrics>(link));
}

LinkMetrics* LaneMetrics::LinkTo(LinkDescription link) const {
  for (const auto& one : links) {
    if (one->description == link) return one.get();
  }
  return nullptr;
}

double QueueMetrics::OldestAgeSeconds(int64_t now_nanos) const {
  const int64_t oldest = oldest_nanos.load(std::memory_order_relaxed);
  return oldest == kEmpty ? 0 : static_cast<double>(std::max<int64_t>(now_nanos - oldest, 0)) * 1e-9;
}

PipelineMetrics::PipelineMetrics(Clock* clock, std::string name, const std::vector<LaneDescription>& lanes,
                                 ScheduleDescription schedule, int64_t trace_events)
    : clock_(clock), name_(std::move(name)), schedule_(std::move(schedule)) {
  for (const LaneDescription& lane : lanes) {
    PENSTOCK_CHECK(lane.lane == static_cast<int>(lanes_.size()));
    lanes_.push_back(std::make_unique<LaneMetrics>(clock, lane, trace_events));
  }
  checkpoint_last_success.Mark(clock);
}

void PipelineMetrics::SetSchedule(ScheduleDescription schedule) {
  absl::MutexLock lock(&mu_);
  schedule_ = std::move(schedule);
}

ScheduleDescription PipelineMetrics::schedule() const {
  absl::MutexLock lock(&mu_);
  return schedule_;
}

std::vector<StateTimes> PipelineMetrics::LaneTimes(int64_t now_nanos) const {
  std::vector<StateTimes> times;
  times.reserve(lanes_.size());
  for (const auto& lane : lanes_) times.push_back(lane->state.Snapshot(now_nanos));
  return times;
}

int64_t PipelineMetrics::TraceDropped() const {
  uint64_t dropped = 0;
  for (const auto& lane : lanes_) dropped += lane->trace.actions.dropped() + lane->trace.states.dropped();
  return static_cast<int64_t>(dropped);
}

int64_t PipelineMetrics::ClampedNanos() const {
  int64_t clamped = 0;
  for (const auto& lane : lanes_) clamped += lane->state.clamped_nanos();
  return clamped;
}

void PipelineMetrics::BatchStarted(BatchMode mode) {
  batches_started[mode].Add();
  runs_active[mode].Add(1);
}

void PipelineMetrics::BatchEnded(BatchMode mode, BatchOutcome outcome, int64_t sample_count, int64_t duration_nanos) {
  runs_active[mode].Add(-1);
  batches[mode][outcome].Add();
  batch_duration[mode].Observe(duration_nanos);
  if (outcome == BatchOutcome::kOk) samples[mode].Add(sample_count);
}

void PipelineMetrics::CheckpointEnded(CheckpointOperation operation, bool ok, int64_t duration_nanos) {
  checkpoint_duration[operation].Observe(duration_nanos);
  if (!ok) checkpoint_failures[operation].Add();
  if (ok && operation == CheckpointOperation::kSave) checkpoint_last_success.Mark(clock_);
}

void MethodMetrics::Handled(int code, int64_t nanos) {
  constexpr int kUnknown = 2;
  const bool known = code >= 0 && code < static_cast<int>(handled_by_code.size());
  handled_by_code[known ? code : kUnknown].Add();
  duration.Observe(nanos);
}

namespace {

constexpr std::string_view kOther = "other";

std::string PathOf(std::string_view service, std::string_view method) {
  return "/" + std::string(service) + "/" + std::string(method);
}

}  // namespace

ServerMetrics::ServerMetrics() { AddMethod(kOther, kOther, kOther); }

MethodMetrics& ServerMetrics::AddMethod(std::string_view type, std::string_view service, std::string_view method) {
  absl::MutexLock lock(&mu_);
  auto& entry = methods_[PathOf(service, method)];
  if (entry == nullptr) {
    entry = std::make_unique<MethodMetrics>(std::string(type), std::string(service), std::string(method));
  }
  return *entry;
}

MethodMetrics& ServerMetrics::MethodOf(std::string_view path) {
  absl::MutexLock lock(&mu_);
  auto found = methods_.find(path);
  return *(found != methods_.end() ? found : methods_.find(PathOf(kOther, kOther)))->second;
}

std::vector<const MethodMetrics*> ServerMetrics::methods() const {
  absl::MutexLock lock(&mu_);
  std::vector<const MethodMetrics*> methods;
  for (const auto& [path, metrics] : methods_) methods.push_back(metrics.get());
  return methods;
}

void ServerMetrics::SetBuild(BuildDescription build) {
  absl::MutexLock lock(&mu_);
  build_ = std::move(build);
}

BuildDescription ServerMetrics::build() const {
  absl::MutexLock lock(&mu_);
  return build_;
}

void ServerMetrics::SetDevices(std::vector<DeviceDescription> devices) {
  absl::MutexLock lock(&mu_);
  devices_ = std::move(devices);
}

std::vector<DeviceDescription> ServerMetrics::devices() const {
  absl::MutexLock lock(&mu_);
  return devices_;
}

}  // namespace penstock
