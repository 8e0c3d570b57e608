#pragma once

// The families of one scrape while they are filled.

#include <string>
#include <vector>

#include "engine/observe/histogram.h"
#include "prometheus/metric_family.h"
#include "server/metrics/metric_names.h"

namespace penstock {

// Label values in the order of the table's row.
using LabelValues = std::vector<std::string>;

inline double CountOf(const CounterCell& cell) { return static_cast<double>(cell.value()); }

// Holds one family per row of the metric table and takes samples for them.
//
// Threads:   one.
// Units:     as the name of the family says; histograms turn nanoseconds into seconds.
class FamilySet {
 public:
  FamilySet();

  // Adds a sample of a counter or gauge.
  void Add(Metric metric, const LabelValues& labels, double value);

  // Adds a sample of a histogram.
  void Add(Metric metric, const LabelValues& labels, const HistogramSnapshot& histogram);

  // The families that got a sample, in the order of the table. The set is empty afterwards.
  std::vector<prometheus::MetricFamily> Take();

 private:
  prometheus::ClientMetric& NewSample(Metric metric, const LabelValues& labels);

  std::vector<prometheus::MetricFamily> families_;  // in the order of the table
};

}  // namespace penstock
