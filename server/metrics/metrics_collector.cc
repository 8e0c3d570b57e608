#include "server/metrics/metrics_collector.h"

#include "server/metrics/family_set.h"

namespace penstock {

std::vector<prometheus::MetricFamily> MetricsCollector::Collect() const {
  const int64_t now = registry_->clock()->NowNanos();
  FamilySet families;
  for (const auto& pipeline : registry_->Snapshot()) CollectPipeline(*pipeline, registry_->self(), now, &families);
  CollectServer(registry_->server(), &families);
  CollectGroup(registry_->group(), registry_->self(), &families);
  CollectMemory(registry_->memory(), registry_->self(), &families);
  families.Add(Metric::kTraceDropped, {}, static_cast<double>(registry_->TraceDropped()));
  families.Add(Metric::kStateClamped, {}, static_cast<double>(registry_->ClampedNanos()) / 1e9);
  CollectProcess(&families);
  families.Add(Metric::kMetricsCollect, {}, static_cast<double>(registry_->clock()->NowNanos() - now) / 1e9);
  return families.Take();
}

}  // namespace penstock
