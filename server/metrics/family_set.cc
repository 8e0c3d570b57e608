#include "server/metrics/family_set.h"

#include <utility>

#include "engine/base/check.h"

namespace penstock {
namespace {

prometheus::MetricType LibraryType(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  PENSTOCK_CHECK(false);
}

// Divides, so that 100,000 ns becomes the number nearest to 0.0001.
double Seconds(int64_t nanos) { return static_cast<double>(nanos) / 1e9; }

}  // namespace

FamilySet::FamilySet() : families_(MetricTable().size()) {
  for (size_t i = 0; i < families_.size(); ++i) {
    const MetricInfo& info = MetricTable()[i];
    families_[i].name = std::string(info.name);
    families_[i].help = std::string(info.help);
    families_[i].type = LibraryType(info.type);
  }
}

prometheus::ClientMetric& FamilySet::NewSample(Metric metric, const LabelValues& labels) {
  const MetricInfo& info = InfoOf(metric);
  PENSTOCK_CHECK(labels.size() == info.labels.size());
  prometheus::ClientMetric& sample = families_[static_cast<size_t>(metric)].metric.emplace_back();
  sample.label.reserve(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    sample.label.push_back({std::string(info.labels[i].name), labels[i]});
  }
  return sample;
}

void FamilySet::Add(Metric metric, const LabelValues& labels, double value) {
  prometheus::ClientMetric& sample = NewSample(metric, labels);
  const MetricType type = InfoOf(metric).type;
  PENSTOCK_CHECK(type != MetricType::kHistogram);
  (type == MetricType::kCounter ? sample.counter.value : sample.gauge.value) = value;
}

void FamilySet::Add(Metric metric, const LabelValues& labels, const HistogramSnapshot& histogram) {
  const MetricInfo& info = InfoOf(metric);
  PENSTOCK_CHECK(info.type == MetricType::kHistogram && info.buckets.data() == histogram.bounds.data());
  prometheus::ClientMetric::Histogram& out = NewSample(metric, labels).histogram;
  out.sample_count = static_cast<uint64_t>(histogram.count());
  out.sample_sum = Seconds(histogram.sum_nanos);
  out.bucket.reserve(histogram.bounds.size());
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    out.bucket.push_back({static_cast<uint64_t>(histogram.cumulative[i]), Seconds(histogram.bounds[i])});
  }
}

std::vector<prometheus::MetricFamily> FamilySet::Take() {
  std::vector<prometheus::MetricFamily> filled;
  for (prometheus::MetricFamily& family : families_) {
    if (!family.metric.empty()) filled.push_back(std::move(family));
  }
  families_.clear();
  return filled;
}

}  // namespace penstock
