#include "engine/observe/span_counters.h"

namespace penstock {

SpanCounters& SpansOf(SpanTarget target) {
  static auto* counters = new CellsBy<SpanTarget, SpanCounters, kSpanTargetNames.size()>;
  return (*counters)[target];
}

}  // namespace penstock
