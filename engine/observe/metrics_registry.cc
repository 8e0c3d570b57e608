#include "engine/observe/metrics_registry.h"

#include <utility>

namespace penstock {

std::shared_ptr<PipelineMetrics> MetricsRegistry::AddPipeline(std::string name,
                                                              const std::vector<LaneDescription>& lanes,
                                                              ScheduleDescription schedule) {
  auto metrics = std::make_shared<PipelineMetrics>(clock_, name, lanes, std::move(schedule), trace_events_);
  absl::MutexLock lock(&mu_);
  if (const auto old = pipelines_.find(name); old != pipelines_.end()) Retire(*old->second);
  pipelines_.insert_or_assign(std::move(name), metrics);
  return metrics;
}

void MetricsRegistry::RemovePipeline(const PipelineMetrics& pipeline) {
  std::shared_ptr<PipelineMetrics> removed;  // destroyed after the lock
  absl::MutexLock lock(&mu_);
  auto found = pipelines_.find(pipeline.name());
  if (found == pipelines_.end() || found->second.get() != &pipeline) return;
  removed = std::move(found->second);
  Retire(*removed);
  pipelines_.erase(found);
}

void MetricsRegistry::Retire(const PipelineMetrics& pipeline) {
  trace_dropped_ += pipeline.TraceDropped();
  clamped_nanos_ += pipeline.ClampedNanos();
}

int64_t MetricsRegistry::ClampedNanos() const {
  absl::MutexLock lock(&mu_);
  int64_t clamped = clamped_nanos_;
  for (const auto& [name, metrics] : pipelines_) clamped += metrics->ClampedNanos();
  return clamped;
}

int64_t MetricsRegistry::TraceDropped() const {
  absl::MutexLock lock(&mu_);
  int64_t dropped = trace_dropped_;
  for (const auto& [name, metrics] : pipelines_) dropped += metrics->TraceDropped();
  return dropped;
}

std::vector<std::shared_ptr<const PipelineMetrics>> MetricsRegistry::Snapshot() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<const PipelineMetrics>> pipelines;
  for (const auto& [name, metrics] : pipelines_) pipelines.push_back(metrics);
  return pipelines;
}

std::shared_ptr<PipelineMetrics> MetricsRegistry::Find(std::string_view name) const {
  absl::MutexLock lock(&mu_);
  auto found = pipelines_.find(name);
  return found == pipelines_.end() ? nullptr : found->second;
}

}  // namespace penstock
