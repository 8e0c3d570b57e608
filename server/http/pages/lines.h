#pragma once

// What several pages say alike.

#include <string>

#include "engine/observe/bubble.h"
#include "server/http/status_pages.h"

namespace penstock {

// "ready, 2 pipelines, 1 run open, up 3 h 2 min".
std::string StateLine(const StatusSources& sources);

// Seconds since an instant of wall time.
double AgeOf(const MetricsRegistry& registry, double unix_seconds);

// A pipeline's name as a link to its page.
Cell PipelineLink(const std::string& name);

// Time of all lanes since their start, by class.
ClassTimes TimesOf(const PipelineMetrics& pipeline, int64_t now_nanos);

int64_t OpenRuns(const PipelineMetrics& pipeline);

}  // namespace penstock
