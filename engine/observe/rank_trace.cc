#include "engine/observe/rank_trace.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/rank_message.h"
#include "engine/observe/rank_clocks.h"

namespace penstock {
namespace {

// Of a field of the trace.
absl::Status Lie(const char* field, const char* problem, int64_t value) {
  return BadRankMessage(absl::StrCat("trace.", field), problem, absl::StrCat(value));
}

bool Within(const TraceRecord& record, const RankTrace& trace) {
  return trace.begin_nanos <= record.begin_nanos && record.begin_nanos <= record.end_nanos &&
         record.end_nanos <= trace.end_nanos;
}

absl::Status CheckLane(const LaneCapture& lane, const RankTrace& trace) {
  const int number = lane.description.lane;
  int64_t last = trace.begin_nanos;
  for (const TraceRecord& record : lane.actions) {
    if (record.kind == TraceKind::kState || record.kind > TraceKind::kRun) {
      return Lie("actions.kind", "must be known, and no state", static_cast<int64_t>(record.kind));
    }
    if (record.kind == TraceKind::kRun && record.detail > static_cast<uint8_t>(TraceRun::kInference)) {
      return Lie("actions.detail", "must be what a run can be for", record.detail);
    }
    if (!Within(record, trace)) return Lie("actions.begin_nanos", "must lie within the trace", record.begin_nanos);
    if (record.end_nanos < last) return Lie("actions.end_nanos", "must be in order", record.end_nanos);
    if (record.lane != number) return Lie("actions.lane", "must be the lane's own", record.lane);
    last = record.end_nanos;
  }
  last = trace.begin_nanos;
  for (const TraceRecord& record : lane.states) {
    if (record.kind != TraceKind::kState)
      return Lie("states.kind", "must be a state", static_cast<int64_t>(record.kind));
    if (record.detail >= kStageStateCount) return Lie("states.detail", "must be a state that is known", record.detail);
    if (!Within(record, trace)) return Lie("states.begin_nanos", "must lie within the trace", record.begin_nanos);
    if (record.begin_nanos != last) return Lie("states.begin_nanos", "must follow the one before", record.begin_nanos);
    if (record.lane != number) return Lie("states.lane", "must be the lane's own", record.lane);
    last = record.end_nanos;
  }
  if (last != trace.end_nanos) return Lie("states.end_nanos", "must reach the end of the trace", last);
  for (const int64_t nanos : lane.after.nanos) {
    if (nanos < 0) return Lie("state_nanos", "must not be negative", nanos);
  }
  return absl::OkStatus();
}

void Shift(int64_t by, RankTrace* trace) {
  trace->begin_nanos += by;
  trace->end_nanos += by;
  for (LaneCapture& lane : trace->lanes) {
    for (std::vector<TraceRecord>* records : {&lane.actions, &lane.states}) {
      for (TraceRecord& record : *records) {
        record.begin_nanos += by;
        record.end_nanos += by;
      }
    }
  }
}

}  // namespace

RankTrace TraceLanesOf(Rank self, const std::shared_ptr<const PipelineMetrics>& metrics, int64_t begin_nanos,
                       int64_t end_nanos) {
  const TraceCapture all = TraceRecorder(metrics, TraceRecorder::From::kOldest, self).Finish();
  const int64_t begin = std::clamp(begin_nanos, all.begin_nanos, all.end_nanos);
  const int64_t end = std::clamp(end_nanos, begin, all.end_nanos);
  TraceCapture cut = CutTrace(all, begin, end);
  RankTrace trace{.begin_nanos = begin, .end_nanos = end, .lost = begin > begin_nanos ? cut.lost : 0, .lanes = {}};
  for (LaneCapture& lane : cut.lanes) {
    if (lane.description.rank != self) continue;
    // What an accelerator has done is recorded later than what the host did meanwhile.
    std::stable_sort(lane.actions.begin(), lane.actions.end(),
                     [](const TraceRecord& one, const TraceRecord& other) { return one.end_nanos < other.end_nanos; });
    trace.lanes.push_back(std::move(lane));
  }
  return trace;
}

absl::Status CheckRankTrace(const RankTrace& trace, Rank rank, const TraceCapture& own, int64_t begin_nanos,
                            int64_t end_nanos) {
  if (trace.begin_nanos > trace.end_nanos) return Lie("begin_nanos", "must not be behind the end", trace.begin_nanos);
  // Where the span is older than all that the rank has, its trace is empty, at the beginning of what it has.
  const bool empty = trace.begin_nanos == trace.end_nanos;
  if (!empty && (trace.begin_nanos < begin_nanos || trace.end_nanos > end_nanos)) {
    return Lie("begin_nanos", "must lie in the span that was asked for", trace.begin_nanos);
  }
  std::set<int> lanes;
  for (const LaneCapture& lane : trace.lanes) {
    const int number = lane.description.lane;
    if (number < 0 || number >= static_cast<int>(own.lanes.size()) ||
        own.lanes[static_cast<size_t>(number)].description.rank != rank || !lanes.insert(number).second) {
      return Lie("lanes.lane", "must be one of the rank's, once", number);
    }
    if (absl::Status checked = CheckLane(lane, trace); !checked.ok()) return checked;
  }
  const auto wanted = std::count_if(own.lanes.begin(), own.lanes.end(),
                                    [rank](const LaneCapture& lane) { return lane.description.rank == rank; });
  if (static_cast<std::ptrdiff_t>(lanes.size()) != wanted) {
    return Lie("lanes", "must be all that the rank has", static_cast<int64_t>(lanes.size()));
  }
  return absl::OkStatus();
}

TraceCapture JoinTraces(const TraceCapture& own, std::map<Rank, RankPart> others) {
  // The rings of a busy rank may have lapped all that was asked for.
  for (auto& [rank, part] : others) part.clock.missing |= part.trace.begin_nanos == part.trace.end_nanos;
  NarrowClocks(own, &others);
  int64_t begin = own.begin_nanos;
  int64_t end = own.end_nanos;
  for (auto& [rank, part] : others) {
    if (part.clock.missing) continue;
    Shift(-part.clock.ahead_nanos, &part.trace);
    begin = std::max(begin, part.trace.begin_nanos);
    end = std::min(end, part.trace.end_nanos);
  }
  begin = std::min(begin, end);
  TraceCapture joint = CutTrace(own, begin, end);
  for (auto& [rank, part] : others) {
    joint.ranks.push_back(part.clock);
    joint.incomplete |= part.clock.missing || part.trace.lost > 0;
    joint.lost += part.trace.lost;
    if (part.clock.missing) continue;
    TraceCapture its;
    its.begin_nanos = part.trace.begin_nanos - 1;  // so that counters at the new begin are reckoned
    its.end_nanos = part.trace.end_nanos;
    its.lanes = std::move(part.trace.lanes);
    its = CutTrace(its, begin, end);
    for (LaneCapture& lane : its.lanes) {
      LaneCapture& place = joint.lanes[static_cast<size_t>(lane.description.lane)];
      lane.description = place.description;
      place = std::move(lane);
    }
  }
  return joint;
}

}  // namespace penstock
