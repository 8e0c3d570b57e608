#pragma once

// The texts that the metric room gives away: the page for Prometheus and the table for documentation and tests.

#include <string>
#include <string_view>

#include "engine/observe/metrics_registry.h"

namespace penstock {

// The media type of MetricsPage().
inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// One scrape in the text format of Prometheus.
std::string MetricsPage(const MetricsRegistry& registry);

// The table of metrics as one JSON array of {name, type, help, labels: [{name, values}], buckets}.
std::string MetricTableJson();

}  // namespace penstock
