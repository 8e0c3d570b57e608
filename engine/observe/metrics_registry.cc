#include "engine/observe/metrics_registry.h"

#include <utility>

namespace penstock {

std::shared_ptr<PipelineMetrics> MetricsRegistry::AddPipeline(std::string name,
                                                              const std::vector<LaneDescription>& lanes,
                                                              ScheduleDescription schedule) {
  auto metrics = MakePipeline(std::move(name), lanes, std::move(schedule));
  AddPipeline(metrics);
  return metrics;
}

std::shared_ptr<PipelineMetrics> MetricsRegistry::MakePipeline(std::string name,
                                                               const std::vector<LaneDescription>& lanes,
                                                               ScheduleDescription schedule) const {
  return std::make_shared<PipelineMetrics>(clock_, std::move(name), lanes, std::move(schedule), trace_events_);
}

void MetricsRegistry::AddPipeline(std::shared_ptr<PipelineMetrics> pipeline) {
  std::string name = pipeline->name();
  absl::MutexLock lock(&mu_);
  std::shared_ptr<PipelineMetrics>& place = pipelines_[std::move(name)];
  if (place != nullptr) Retire(*place);
  place.swap(pipeline);  // the old one is destroyed after the lock
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
