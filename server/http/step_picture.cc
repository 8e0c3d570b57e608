#include "server/http/step_picture.h"

#include <algorithm>

#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_export.h"

namespace penstock {
namespace {

// Enough for a step of 16 chunks and 128 micro-batches a lane, and small enough to be read each second.
constexpr uint64_t kMaxRecords = 16'384;

std::optional<StageState> StateOf(const TraceRecord& record) {
  switch (record.kind) {
    case TraceKind::kForward:
      return record.inference ? StageState::kFilled : StageState::kForward;
    case TraceKind::kBackward:
      return StageState::kBackward;
    case TraceKind::kBackwardInput:
      return StageState::kBackwardInput;
    case TraceKind::kBackwardWeight:
      return StageState::kBackwardWeight;
    case TraceKind::kRecompute:
      return StageState::kRecompute;
    case TraceKind::kOptimizer:
      return StageState::kOptimizer;
    default:
      return std::nullopt;
  }
}

bool IsWork(StageState state) { return InfoOf(state).state_class == StateClass::kWork; }

bool Runs(StageState state) {
  const StateClass of = InfoOf(state).state_class;
  return of == StateClass::kWork || of == StateClass::kFilled || state == StageState::kInfer;
}

std::optional<RunSpan> LastWholeStep(const TraceCapture& capture) {
  std::optional<RunSpan> last;
  for (const RunSpan& run : RunsOf(capture)) {
    const bool computes = run.purpose == TraceRun::kTrainStep || run.purpose == TraceRun::kContribution;
    if (computes && !run.failed && run.lanes == static_cast<int>(capture.lanes.size())) last = run;
  }
  return last;
}

}  // namespace

std::optional<StepPicture> LastStep(const PipelineMetrics& pipeline) {
  const TraceCapture capture = CaptureActions(pipeline, kMaxRecords);
  const std::optional<RunSpan> run = LastWholeStep(capture);
  if (!run.has_value() || run->end_nanos <= run->begin_nanos) return std::nullopt;
  StepPicture picture{.step = run->step,
                      .micro_batches = run->micro_batches,
                      .makespan = run->end_nanos - run->begin_nanos,
                      .lanes = {}};
  int64_t work = 0;
  for (int i = 0; i < pipeline.lane_count(); ++i) {
    const LaneMetrics& metrics = pipeline.lane(i);
    StepLane lane{
        .device = metrics.description.device, .layers = metrics.description.layers, .actions = {}, .waits = {}};
    for (const TraceRecord& record : capture.lanes[i].actions) {
      const std::optional<StageState> state = StateOf(record);
      const bool inside = record.begin_nanos >= run->begin_nanos && record.end_nanos <= run->end_nanos;
      if (!state.has_value() || !inside || (IsWork(*state) && record.run != run->run)) continue;
      lane.actions.push_back({.begin = record.begin_nanos - run->begin_nanos,
                              .end = record.end_nanos - run->begin_nanos,
                              .state = *state,
                              .label = TraceName(record)});
      if (IsWork(*state)) work += record.end_nanos - record.begin_nanos;
    }
    std::vector<TraceRecord> states;
    const uint64_t written = metrics.trace.states.written();
    metrics.trace.states.Read(written > kMaxRecords ? written - kMaxRecords : 0, written, &states);
    for (const TraceRecord& record : states) {
      const auto state = static_cast<StageState>(record.detail);
      const int64_t begin = std::max(record.begin_nanos, run->begin_nanos) - run->begin_nanos;
      const int64_t end = std::min(record.end_nanos, run->end_nanos) - run->begin_nanos;
      if (begin < end && !Runs(state)) lane.waits.push_back({.begin = begin, .end = end, .state = state, .label = ""});
    }
    picture.lanes.push_back(std::move(lane));
  }
  const double mean = static_cast<double>(work) / static_cast<double>(picture.lanes.size());
  const double ideal = std::clamp(pipeline.lane(0).ideal_bubble.value(), 0.0, 0.999);
  picture.ideal_finish = static_cast<int64_t>(mean / (1 - ideal));
  picture.bubble = 1 - mean / static_cast<double>(picture.makespan);
  return picture;
}

}  // namespace penstock
