#include "engine/observe/trace_capture.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

// Optimizer steps that ended on a lane, and began there at `begin_nanos` or later.
int64_t CountSteps(const std::vector<TraceRecord>& actions, size_t from, int64_t begin_nanos) {
  return std::count_if(actions.begin() + static_cast<std::ptrdiff_t>(from), actions.end(),
                       [begin_nanos](const TraceRecord& record) {
                         return record.kind == TraceKind::kRun && !record.failed && record.begin_nanos >= begin_nanos &&
                                EndsStep(static_cast<TraceRun>(record.detail));
                       });
}

absl::Status NotRetained(int64_t step, std::string_view problem) {
  return Error(absl::StatusCode::kOutOfRange, "STEP_NOT_RETAINED",
               absl::StrCat("step: ", absl::string_view(problem.data(), problem.size()), ", got ", step))
      .With("field", "step")
      .With("value", absl::StrCat(step));
}

}  // namespace

TraceRecorder::TraceRecorder(std::shared_ptr<const PipelineMetrics> metrics, From from, Rank self, int64_t max_records)
    : metrics_(std::move(metrics)),
      from_(from),
      self_(self),
      max_records_(max_records),
      lanes_(metrics_->lane_count()) {
  begin_nanos_ = metrics_->clock()->NowNanos();
  first_step_ = metrics_->step_number.value();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneMetrics& lane = metrics_->lane(static_cast<int>(i));
    lanes_[i].before = lane.state.Snapshot(begin_nanos_);
    if (from == From::kOldest) continue;
    lanes_[i].next_action = lane.trace.actions.written();
    lanes_[i].next_state = lanes_[i].before.transitions;
  }
  if (from == From::kOldest) {
    for (const Lane& lane : lanes_) begin_nanos_ = std::min(begin_nanos_, lane.before.start_nanos);
  }
  Collect();
}

void TraceRecorder::Take(const TraceRing& ring, uint64_t until, uint64_t* next, std::vector<TraceRecord>* to,
                         Lane* lane) {
  const size_t had = to->size();
  uint64_t gone = ring.Read(*next, until, to);
  const int64_t excess = static_cast<int64_t>(to->size()) - max_records_;
  if (gone == 0 && excess <= 0) {
    *next = until;
    return;
  }
  // Only what follows the gap is of use: a capture has none.
  size_t drop = gone > 0 ? had : 0;
  drop = std::max(drop, static_cast<size_t>(std::max<int64_t>(excess, 0)));
  to->erase(to->begin(), to->begin() + static_cast<std::ptrdiff_t>(drop));
  if (!to->empty()) {
    // Records stand in the order of their ends: what is lost ended before the first that is left did. States follow
    // each other.
    const TraceRecord& first = to->front();
    lane->lost_until_nanos =
        std::max(lane->lost_until_nanos, first.kind == TraceKind::kState ? first.begin_nanos : first.end_nanos);
  }
  lost_ += gone + drop;
  *next = until;
}

void TraceRecorder::Collect() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!IsHere(i)) continue;
    const LaneTrace& trace = metrics_->lane(static_cast<int>(i)).trace;
    Lane& lane = lanes_[i];
    const size_t had = lane.actions.size();
    const uint64_t lost = lost_;
    Take(trace.actions, trace.actions.written(), &lane.next_action, &lane.actions, &lane);
    lane.steps = lost == lost_ ? lane.steps + CountSteps(lane.actions, had, begin_nanos_)
                               : CountSteps(lane.actions, 0, begin_nanos_);
    Take(trace.states, trace.states.written(), &lane.next_state, &lane.states, &lane);
  }
  Sample(metrics_->clock()->NowNanos());
}

void TraceRecorder::Sample(int64_t now) {
  queues_.push_back(
      {now, metrics_->queues[WorkQueue::kTrain].depth.value(), metrics_->queues[WorkQueue::kInfer].depth.value()});
  const size_t size = queues_.size();
  const auto same = [](const QueueSample& a, const QueueSample& b) { return a.train == b.train && a.infer == b.infer; };
  if (size > 2 && same(queues_[size - 1], queues_[size - 2]) && same(queues_[size - 2], queues_[size - 3])) {
    queues_.erase(queues_.end() - 2);
  }
}

int64_t TraceRecorder::steps_ended() const {
  int64_t least = std::numeric_limits<int64_t>::max();
  bool any = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!IsHere(i)) continue;
    least = std::min(least, lanes_[i].steps);
    any = true;
  }
  return any ? least : static_cast<int64_t>(metrics_->step_number.value() - first_step_);
}

TraceCapture TraceRecorder::Finish() {
  Collect();
  TraceCapture capture;
  capture.pipeline = metrics_->name();
  Clock* clock = metrics_->clock();
  const int64_t mono = clock->NowNanos();
  const int64_t wall = absl::ToUnixNanos(clock->WallNow());
  capture.end_nanos = clock->NowNanos();
  capture.wall_uncertainty_nanos = capture.end_nanos - mono;
  capture.wall_offset_nanos = wall - (mono + capture.wall_uncertainty_nanos / 2);
  int64_t begin = begin_nanos_;
  int64_t end = capture.end_nanos;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneMetrics& metrics = metrics_->lane(static_cast<int>(i));
    Lane& lane = lanes_[i];
    LaneCapture out;
    out.description = metrics.description;
    if (!IsHere(i)) {
      capture.lanes.push_back(std::move(out));
      continue;
    }
    out.after = metrics.state.Snapshot(end);
    end = std::max(end, out.after.at_nanos);
    Take(metrics.trace.states, out.after.transitions, &lane.next_state, &lane.states, &lane);
    out.actions = std::move(lane.actions);
    out.states = std::move(lane.states);
    if (out.after.at_nanos > out.after.since_nanos) {  // the state that still lasts
      out.states.push_back({.begin_nanos = out.after.since_nanos,
                            .end_nanos = out.after.at_nanos,
                            .kind = TraceKind::kState,
                            .detail = static_cast<uint8_t>(out.after.state),
                            .lane = static_cast<int16_t>(i)});
    }
    begin = std::max(begin, lane.lost_until_nanos);
    // A lane is as old as its clock.
    begin = std::max(begin, out.after.start_nanos);
    out.before = lane.before;
    if (from_ == From::kOldest) {  // its clock has counted since its start
      out.before = {.start_nanos = out.after.start_nanos, .at_nanos = out.after.start_nanos};
    }
    capture.lanes.push_back(std::move(out));
  }
  capture.begin_nanos = begin_nanos_;
  capture.queues = std::move(queues_);
  capture.lost = lost_;
  // Every lane was read at a moment of its own, microseconds apart: all end where the first did.
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (IsHere(i)) end = std::min(end, capture.lanes[i].after.at_nanos);
  }
  TraceCapture cut = CutTrace(capture, begin, end);
  cut.incomplete = lost_ > 0;
  return cut;
}

TraceCapture CaptureActions(const PipelineMetrics& metrics, uint64_t max_records) {
  TraceCapture capture;
  capture.pipeline = metrics.name();
  for (int i = 0; i < metrics.lane_count(); ++i) {
    const LaneMetrics& lane = metrics.lane(i);
    LaneCapture out;
    out.description = lane.description;
    const uint64_t written = lane.trace.actions.written();
    const uint64_t from = written > max_records ? written - max_records : 0;
    const uint64_t lost = lane.trace.actions.Read(from, written, &out.actions);
    capture.lost += from + lost;
    capture.lanes.push_back(std::move(out));
  }
  capture.incomplete = capture.lost > 0;
  return capture;
}

TraceCapture CutTrace(const TraceCapture& capture, int64_t begin_nanos, int64_t end_nanos) {
  TraceCapture cut;
  cut.pipeline = capture.pipeline;
  cut.begin_nanos = begin_nanos;
  cut.end_nanos = end_nanos;
  cut.wall_offset_nanos = capture.wall_offset_nanos;
  cut.wall_uncertainty_nanos = capture.wall_uncertainty_nanos;
  cut.rank = capture.rank;
  cut.ranks = capture.ranks;
  cut.lost = capture.lost;
  cut.incomplete = capture.incomplete;
  for (const QueueSample& sample : capture.queues) {
    if (sample.at_nanos >= begin_nanos && sample.at_nanos <= end_nanos) cut.queues.push_back(sample);
  }
  for (const LaneCapture& lane : capture.lanes) {
    LaneCapture part;
    part.description = lane.description;
    part.after = lane.after;
    for (const TraceRecord& record : lane.actions) {
      if (record.begin_nanos >= begin_nanos && record.end_nanos <= end_nanos) part.actions.push_back(record);
    }
    part.after.at_nanos = end_nanos;
    part.before = part.after;
    part.before.at_nanos = begin_nanos;
    for (const TraceRecord& record : lane.states) {
      const auto state = static_cast<StageState>(record.detail);
      const int64_t behind = record.end_nanos - std::clamp(end_nanos, record.begin_nanos, record.end_nanos);
      part.after.nanos[record.detail] -= behind;
      const int64_t from = std::max(record.begin_nanos, begin_nanos);
      const int64_t to = std::min(record.end_nanos, end_nanos);
      part.before.nanos[record.detail] -= behind;
      if (from >= to) continue;
      if (part.states.empty()) part.before.state = state;
      part.before.nanos[record.detail] -= to - from;
      part.after.state = state;
      part.states.push_back(record);
      part.states.back().begin_nanos = from;
      part.states.back().end_nanos = to;
    }
    // What the clock said then, where it was asked: a test compares it with the spans.
    if (begin_nanos == capture.begin_nanos) part.before = lane.before;
    cut.lanes.push_back(std::move(part));
  }
  return cut;
}

void AddCalls(std::vector<CallSpan> calls, TraceCapture* capture) {
  std::erase_if(calls, [&](const CallSpan& call) {
    return call.ended_nanos < capture->begin_nanos || call.accepted_nanos > capture->end_nanos;
  });
  std::stable_sort(calls.begin(), calls.end(),
                   [](const CallSpan& a, const CallSpan& b) { return a.accepted_nanos < b.accepted_nanos; });
  capture->calls = std::move(calls);
}

std::vector<RunSpan> RunsOf(const TraceCapture& capture) {
  std::map<int64_t, RunSpan> by_run;
  for (const LaneCapture& lane : capture.lanes) {
    for (const TraceRecord& record : lane.actions) {
      if (record.kind != TraceKind::kRun) continue;
      const auto [place, is_new] = by_run.emplace(record.run, RunSpan());
      RunSpan& span = place->second;
      if (is_new) {
        span = {.run = record.run,
                .step = record.step,
                .purpose = static_cast<TraceRun>(record.detail),
                .micro_batches = record.micro_batch,
                .begin_nanos = record.begin_nanos,
                .end_nanos = record.end_nanos};
      }
      span.begin_nanos = std::min(span.begin_nanos, record.begin_nanos);
      span.end_nanos = std::max(span.end_nanos, record.end_nanos);
      span.failed = span.failed || record.failed;
      ++span.lanes;
    }
  }
  std::vector<RunSpan> runs;
  for (auto& [run, span] : by_run) runs.push_back(span);
  std::stable_sort(runs.begin(), runs.end(),
                   [](const RunSpan& a, const RunSpan& b) { return a.begin_nanos < b.begin_nanos; });
  return runs;
}

int LanesThere(const TraceCapture& capture) {
  const auto is_there = [&capture](const LaneCapture& lane) {
    return std::none_of(capture.ranks.begin(), capture.ranks.end(), [&lane](const RankClock& rank) {
      return rank.missing && Rank(rank.rank) == lane.description.rank;
    });
  };
  return static_cast<int>(std::count_if(capture.lanes.begin(), capture.lanes.end(), is_there));
}

absl::StatusOr<TraceCapture> CutTraceToSteps(const TraceCapture& capture, int64_t first, int64_t last) {
  std::map<int64_t, std::pair<int64_t, int64_t>> spans;  // by step
  const int lanes = LanesThere(capture);
  int64_t latest = 0;
  int64_t newest = 0;
  for (const RunSpan& run : RunsOf(capture)) {
    if (!Trains(run.purpose)) continue;
    // A restored checkpoint counts anew: only the last pass over a step is meant.
    if (run.step < latest) {
      spans.erase(spans.lower_bound(run.step), spans.end());
      newest = std::min(newest, run.step - 1);
    }
    latest = run.step;
    const bool whole = run.lanes == lanes;
    const auto [place, is_new] = spans.try_emplace(run.step, run.begin_nanos, run.end_nanos);
    place->second.first = std::min(place->second.first, run.begin_nanos);
    place->second.second = std::max(place->second.second, run.end_nanos);
    if (whole && !run.failed && EndsStep(run.purpose)) newest = std::max(newest, run.step);
  }
  if (newest == 0) return NotRetained(first, "no optimizer step is in the trace ring");
  if (last > newest) return NotRetained(last, absl::StrCat("has not ended, the last was ", newest));
  if (spans.count(first) == 0 || (capture.incomplete && spans.begin()->first >= first)) {
    // The oldest step of a ring that has wrapped may have lost its beginning.
    return NotRetained(first, "is not in the trace ring any more (--trace-ring-events)");
  }
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (const auto& [step, span] : spans) {
    if (step < first || step > last) continue;
    begin = std::min(begin, span.first);
    end = std::max(end, span.second);
  }
  TraceCapture cut = CutTrace(capture, begin, end);
  cut.incomplete = lanes < static_cast<int>(capture.lanes.size());
  cut.lost = 0;
  return cut;
}

}  // namespace penstock
