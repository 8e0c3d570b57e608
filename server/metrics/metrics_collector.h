#pragma once

// Turns the engine's cells into what the Prometheus library prints.

#include <vector>

#include "engine/observe/metrics_registry.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace penstock {

class FamilySet;

// Converts a registry of metrics at each scrape. The library sees values only here; nothing that runs work touches it.
//
// Owns:      nothing; the registry must outlive it.
// Threads:   any method from any thread.
class MetricsCollector : public prometheus::Collectable {
 public:
  explicit MetricsCollector(const MetricsRegistry* registry) : registry_(registry) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const MetricsRegistry* const registry_;
};

// The parts of a scrape. `now_nanos` is one instant for all, so that the times of all lanes agree. Each rank tells of its
// own lanes, and the leader, rank 0, also of the pipeline and its plan: nothing stands on the pages of two ranks. Only the
// leader admits work against its host's memory.
void CollectPipeline(const PipelineMetrics& pipeline, Rank self, int64_t now_nanos, FamilySet* families);
void CollectServer(const ServerMetrics& server, FamilySet* families);
void CollectGroup(const GroupFigures& group, Rank self, FamilySet* families);
void CollectMemory(const MemoryMetrics& memory, Rank self, FamilySet* families);
void CollectProcess(FamilySet* families);

}  // namespace penstock
