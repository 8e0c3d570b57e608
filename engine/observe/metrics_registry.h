#pragma once

// All metrics that exist now: those of the daemon and those of each live pipeline.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/observe/group_figures.h"
#include "engine/observe/memory_metrics.h"
#include "engine/observe/metrics.h"

namespace penstock {

// Where owners of metrics register, and where a scrape finds them.
//
// Model:     one ServerMetrics, and one PipelineMetrics per live pipeline, in order of their names.
// Owns:      a share of each PipelineMetrics, until it is removed. The Clock must outlive the registry.
// Threads:   any method from any thread.
// Lifecycle: AddPipeline() when a pipeline is made, RemovePipeline() when it is gone. A second pipeline under a name
//            that is still registered takes its place: the name's new owner is the one that people ask about.
// Example:   std::shared_ptr<PipelineMetrics> metrics = registry->AddPipeline("gpt", lanes, schedule);
//            metrics->lane(0).state.Enter(StageState::kNoWork);
//            registry->RemovePipeline(*metrics);
class MetricsRegistry {
 public:
  // `trace_events`: records that each trace ring of a lane keeps.
  // `self`: this process's rank; pipelines are led by rank 0.
  explicit MetricsRegistry(Clock* clock, int64_t trace_events = TraceRing::kDefaultEvents, Rank self = Rank(0))
      : clock_(clock), trace_events_(trace_events), self_(self) {}

  Clock* clock() const { return clock_; }
  Rank self() const { return self_; }
  ServerMetrics& server() { return server_; }
  const ServerMetrics& server() const { return server_; }
  MemoryMetrics& memory() { return memory_; }
  const MemoryMetrics& memory() const { return memory_; }

  // Who knows the group, for as long as scrapes come; unset: this process is alone. Before the first scrape.
  void SetGroup(std::function<GroupFigures()> group) { group_ = std::move(group); }
  GroupFigures group() const { return group_ ? group_() : GroupFigures(); }

  std::shared_ptr<PipelineMetrics> AddPipeline(std::string name, const std::vector<LaneDescription>& lanes,
                                               ScheduleDescription schedule = {}) ABSL_LOCKS_EXCLUDED(mu_);
  // The same in two steps: what is made is not registered until it is added.
  std::shared_ptr<PipelineMetrics> MakePipeline(std::string name, const std::vector<LaneDescription>& lanes,
                                                ScheduleDescription schedule = {}) const;
  void AddPipeline(std::shared_ptr<PipelineMetrics> pipeline) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes this pipeline if it is registered; another one that took over its name stays.
  void RemovePipeline(const PipelineMetrics& pipeline) ABSL_LOCKS_EXCLUDED(mu_);

  // The live pipelines, by name. A pipeline that is removed meanwhile stays readable through the answer.
  std::vector<std::shared_ptr<const PipelineMetrics>> Snapshot() const ABSL_LOCKS_EXCLUDED(mu_);

  // Trace records of all pipelines, those that are gone included, that were overwritten.
  int64_t TraceDropped() const ABSL_LOCKS_EXCLUDED(mu_);

  // The same of the time by which transitions were put off.
  int64_t ClampedNanos() const ABSL_LOCKS_EXCLUDED(mu_);

  // The pipeline of a name, or nullptr.
  std::shared_ptr<PipelineMetrics> Find(std::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Keeps what a pipeline that goes has counted for the whole daemon.
  void Retire(const PipelineMetrics& pipeline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const int64_t trace_events_;
  const Rank self_;
  std::function<GroupFigures()> group_;
  ServerMetrics server_;
  MemoryMetrics memory_;

  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<PipelineMetrics>, std::less<>> pipelines_ ABSL_GUARDED_BY(mu_);
  int64_t trace_dropped_ ABSL_GUARDED_BY(mu_) = 0;  // of pipelines that are gone
  int64_t clamped_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // of the same
};

}  // namespace penstock
