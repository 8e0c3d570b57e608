#pragma once

// Traces of a pipeline whose lanes are in several processes, each with a clock of its own.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/ids.h"
#include "engine/observe/metrics.h"
#include "engine/observe/trace_capture.h"

namespace penstock {

// What the lanes of one rank did in a span of time, by the rank's clock.
struct RankTrace {
  int64_t begin_nanos = 0;  // later than asked where the rings have no more
  int64_t end_nanos = 0;
  uint64_t lost = 0;               // records of the span that had been overwritten
  std::vector<LaneCapture> lanes;  // of descriptions the number alone; of counters those of `after`
};

// On the rank itself.
RankTrace TraceLanesOf(Rank self, const std::shared_ptr<const PipelineMetrics>& metrics, int64_t begin_nanos,
                       int64_t end_nanos);

// Whether a rank may have said this, asked for that span of a pipeline with lanes like those of `own`.
//
// Fails:     INVALID_ARGUMENT / RANK_MESSAGE naming the field and the value.
absl::Status CheckRankTrace(const RankTrace& trace, Rank rank, const TraceCapture& own, int64_t begin_nanos,
                            int64_t end_nanos);

// Another rank's part of a joint trace.
struct RankPart {
  RankClock clock;       // `missing`: there is no trace
  RankTrace trace = {};  // checked
};

// Puts the lanes of other ranks into a capture of the leader's own, by the leader's clock: their times are shifted by the
// offset of their clock, as pings and messages tell it, and nothing else. The result is the span that all ranks have. A rank
// that has nothing of the span is missing; where one is, or has lost records, the result is incomplete.
TraceCapture JoinTraces(const TraceCapture& own, std::map<Rank, RankPart> others);

}  // namespace penstock
