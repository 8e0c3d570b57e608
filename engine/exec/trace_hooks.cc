#include "engine/exec/trace_hooks.h"

#include "engine/exec/action_labels.h"

namespace penstock {
namespace {

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kActionLabels.size(); ++i) {
    if (kActionLabels[i].kind != static_cast<ActionKind>(i)) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

TraceRun PurposeOf(const Run& run) {
  if (run.spec.inference) return TraceRun::kInference;
  switch (run.spec.purpose) {
    case SchedulePurpose::kTrainingStep:
      return TraceRun::kTrainStep;
    case SchedulePurpose::kContribution:
      return TraceRun::kContribution;
    case SchedulePurpose::kForwardOnly:
      return TraceRun::kForward;
    case SchedulePurpose::kBackwardOnly:
      return TraceRun::kBackward;
    case SchedulePurpose::kOptimizerOnly:
      return TraceRun::kOptimizerStep;
  }
  return TraceRun::kTrainStep;
}

// Training belongs to the step that it will end, inference to the one whose weights it has.
TraceRecord RecordOf(const LaneMetrics& lane, const Run& run, int64_t begin, int64_t end) {
  return {.begin_nanos = begin,
          .end_nanos = end,
          .inference = run.spec.inference,
          .lane = static_cast<int16_t>(lane.description.lane),
          .step = run.spec.step.value() + (run.spec.inference ? 0 : 1),
          .run = run.spec.id};
}

}  // namespace

void TraceAction(LaneMetrics& lane, const Run& run, const Action& action, int part, int64_t begin, int64_t end) {
  TraceRecord record = RecordOf(lane, run, begin, end);
  record.kind = LabelsOf(action.kind).trace;
  record.stage = action.stage;
  record.micro_batch = action.micro_batch;
  if (action.kind == ActionKind::kOptimizer) record.detail = static_cast<uint8_t>(part);
  lane.trace.actions.Record(record);
}

void TraceMessage(LaneMetrics& lane, const Run& run, const Action& action, const MessageKey& key, int64_t begin,
                  int64_t end) {
  TraceRecord record = RecordOf(lane, run, begin, end);
  record.kind = LabelsOf(action.kind).trace;
  record.stage = action.stage;
  record.micro_batch = action.micro_batch;
  record.peer = static_cast<int16_t>(action.peer);
  record.correlation =
      MessageCorrelation(key.run, key.kind == MessageKind::kGradient, key.stage, key.micro_batch, key.peer);
  lane.trace.actions.Record(record);
}

void TraceLaneRun(LaneMetrics& lane, const Run& run, int64_t begin, int64_t end) {
  TraceRecord record = RecordOf(lane, run, begin, end);
  record.kind = TraceKind::kRun;
  record.detail = static_cast<uint8_t>(PurposeOf(run));
  record.failed = run.coordinator->Stopped();
  record.micro_batch = run.micro_batches();
  lane.trace.actions.Record(record);
}

}  // namespace penstock
