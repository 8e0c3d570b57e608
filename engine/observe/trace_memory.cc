#include "engine/observe/trace_memory.h"

#include "engine/observe/trace_ring.h"

namespace penstock {

int64_t TraceRingBytes(const PipelineMetrics& metrics) {
  constexpr int64_t kLine = 64;  // that a record stands in
  int64_t records = 0;
  for (int i = 0; i < metrics.lane_count(); ++i) {
    const LaneTrace& trace = metrics.lane(i).trace;
    records += trace.actions.capacity() + trace.states.capacity();
  }
  return records * kLine;
}

int64_t TraceRecordsWritten(const PipelineMetrics& metrics) {
  uint64_t records = 0;
  for (int i = 0; i < metrics.lane_count(); ++i) {
    const LaneTrace& trace = metrics.lane(i).trace;
    records += trace.actions.written() + trace.states.written();
  }
  return static_cast<int64_t>(records);
}

}  // namespace penstock
