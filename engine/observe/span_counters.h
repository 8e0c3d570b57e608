#pragma once

// What came of the spans of requests. Counted for the whole process, as log lines are.

#include <array>
#include <string_view>

#include "engine/observe/histogram.h"
#include "engine/observe/metric_labels.h"

namespace penstock {

enum class SpanTarget { kFile, kCollector };
inline constexpr std::array<std::string_view, 2> kSpanTargetNames = {"file", "collector"};

// A dropped span found the queue full; a failed one was not taken.
enum class SpanOutcome { kSent, kDropped, kFailed };
inline constexpr std::array<std::string_view, 3> kSpanOutcomeNames = {"sent", "dropped", "failed"};

using SpanCounters = CellsBy<SpanOutcome, CounterCell, kSpanOutcomeNames.size()>;

// Those of one target. Never destroyed.
SpanCounters& SpansOf(SpanTarget target);

}  // namespace penstock
