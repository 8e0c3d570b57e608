#include <string>
#include <utility>

#include "server/metrics/family_set.h"
#include "server/metrics/metrics_collector.h"

namespace penstock {
namespace {

// `labels` and one more value.
LabelValues And(LabelValues labels, std::string_view value) {
  labels.emplace_back(value);
  return labels;
}

// One sample per value of a label: `value_of(i)` belongs to names[i].
template <typename Names, typename ValueOf>
void AddEach(FamilySet* families, Metric metric, const LabelValues& labels, const Names& names, ValueOf value_of) {
  for (size_t i = 0; i < names.size(); ++i) families->Add(metric, And(labels, names[i]), value_of(i));
}

void CollectLane(const std::string& pipeline, const LaneMetrics& lane, int64_t now_nanos, FamilySet* families) {
  const LaneDescription& description = lane.description;
  const LabelValues labels = {pipeline, std::to_string(description.lane), description.device};
  const StateTimes times = lane.state.Snapshot(now_nanos);
  for (const StageStateInfo& info : StageStates()) {
    families->Add(Metric::kStageTime, And(labels, info.name), static_cast<double>(times[info.state]) / 1e9);
  }
  // A GPU works on when its lane's thread has gone, so the thread's time says nothing of it. A CPU of another
  // rank is called "1/cpu:0".
  if (description.device.find("cpu:") != std::string::npos) {
    families->Add(Metric::kDeviceBusy, And(labels, "compute"), static_cast<double>(lane.compute_nanos.value()) / 1e9);
  }
  AddEach(families, Metric::kPhaseDuration, labels, kPhaseNames,
          [&](size_t i) { return lane.phases.at(i).Snapshot(); });
  families->Add(Metric::kStageInfo,
                And(And(And(labels, description.device_uuid), ToString(description.rank)), description.layers), 1);
  families->Add(Metric::kStageLastProgress, labels, lane.last_progress.seconds());
  families->Add(Metric::kInflightMicroBatches, labels, lane.inflight_micro_batches.value());
  families->Add(Metric::kRecomputedActivationBytes, labels, static_cast<double>(lane.recomputed_bytes.value()));
  families->Add(Metric::kOutOfMemory, labels, static_cast<double>(lane.out_of_memory.value()));
  AddEach(families, Metric::kDeviceMemory, labels, kMemoryKindNames,
          [&](size_t i) { return lane.memory->at(i).value(); });
  for (const auto& link : lane.links) {
    const LabelValues ends = {pipeline, std::to_string(description.lane), std::to_string(link->description.to),
                              std::string(kLinkKindNames.at(static_cast<size_t>(link->description.kind)))};
    families->Add(Metric::kLinkBytes, ends, static_cast<double>(link->bytes.value()));
    families->Add(Metric::kLinkTransferSeconds, ends, static_cast<double>(link->nanos.value()) / 1e9);
  }
}

// Of the plan, which only the leader has.
void CollectForecast(const std::string& pipeline, const LaneMetrics& lane, FamilySet* families) {
  const LabelValues labels = {pipeline, std::to_string(lane.description.lane), lane.description.device};
  families->Add(Metric::kIdealBubble, labels, lane.ideal_bubble.value());
  families->Add(Metric::kPredictedBubble, labels, lane.predicted_bubble.value());
}

void CollectBatches(const PipelineMetrics& pipeline, const LabelValues& labels, FamilySet* families) {
  AddEach(families, Metric::kBatchesStarted, labels, kBatchModeNames,
          [&](size_t i) { return CountOf(pipeline.batches_started.at(i)); });
  for (size_t mode = 0; mode < kBatchModeNames.size(); ++mode) {
    AddEach(families, Metric::kBatches, And(labels, kBatchModeNames[mode]), kBatchOutcomeNames,
            [&](size_t i) { return CountOf(pipeline.batches.at(mode).at(i)); });
  }
  AddEach(families, Metric::kSamples, labels, kBatchModeNames,
          [&](size_t i) { return CountOf(pipeline.samples.at(i)); });
  AddEach(families, Metric::kBatchDuration, labels, kBatchModeNames,
          [&](size_t i) { return pipeline.batch_duration.at(i).Snapshot(); });
  AddEach(families, Metric::kRunsActive, labels, kBatchModeNames,
          [&](size_t i) { return pipeline.runs_active.at(i).value(); });
  families->Add(Metric::kInferenceRuns, labels, CountOf(pipeline.inference_runs));
  families->Add(Metric::kStepNumber, labels, pipeline.step_number.value());
  families->Add(Metric::kLoss, labels, pipeline.loss.value());
  AddEach(families, Metric::kNonfiniteSteps, labels, kNonfiniteKindNames,
          [&](size_t i) { return CountOf(pipeline.nonfinite_steps.at(i)); });
}

void CollectQueues(const PipelineMetrics& pipeline, const LabelValues& labels, int64_t now_nanos, FamilySet* families) {
  AddEach(families, Metric::kQueueDepth, labels, kWorkQueueNames,
          [&](size_t i) { return pipeline.queues.at(i).depth.value(); });
  AddEach(families, Metric::kQueueCapacity, labels, kWorkQueueNames,
          [&](size_t i) { return pipeline.queues.at(i).capacity.value(); });
  AddEach(families, Metric::kQueueOldestAge, labels, kWorkQueueNames,
          [&](size_t i) { return pipeline.queues.at(i).OldestAgeSeconds(now_nanos); });
  AddEach(families, Metric::kQueueWait, labels, kWorkQueueNames,
          [&](size_t i) { return pipeline.queues.at(i).wait.Snapshot(); });
  AddEach(families, Metric::kAdmissionRejected, labels, kRejectReasonNames,
          [&](size_t i) { return CountOf(pipeline.rejected.at(i)); });
}

void CollectCheckpoints(const PipelineMetrics& pipeline, const LabelValues& labels, FamilySet* families) {
  AddEach(families, Metric::kCheckpointDuration, labels, kCheckpointOperationNames,
          [&](size_t i) { return pipeline.checkpoint_duration.at(i).Snapshot(); });
  AddEach(families, Metric::kCheckpointFailures, labels, kCheckpointOperationNames,
          [&](size_t i) { return CountOf(pipeline.checkpoint_failures.at(i)); });
  families->Add(Metric::kCheckpointLastSuccess, labels, pipeline.checkpoint_last_success.seconds());
  families->Add(Metric::kCheckpointSize, labels, pipeline.checkpoint_bytes.value());
}

}  // namespace

void CollectPipeline(const PipelineMetrics& pipeline, Rank self, int64_t now_nanos, FamilySet* families) {
  for (int lane = 0; lane < pipeline.lane_count(); ++lane) {
    if (pipeline.lane(lane).description.rank != self) continue;
    CollectLane(pipeline.name(), pipeline.lane(lane), now_nanos, families);
  }
  if (self != Rank(0)) return;
  for (int lane = 0; lane < pipeline.lane_count(); ++lane) {
    CollectForecast(pipeline.name(), pipeline.lane(lane), families);
  }
  const ScheduleDescription schedule = pipeline.schedule();
  families->Add(Metric::kScheduleInfo,
                {pipeline.name(), schedule.kind, std::to_string(schedule.stages), std::to_string(schedule.chunks),
                 std::to_string(schedule.micro_batches), schedule.checkpoint_mode},
                1);
  const LabelValues labels = {pipeline.name()};
  CollectBatches(pipeline, labels, families);
  CollectQueues(pipeline, labels, now_nanos, families);
  CollectCheckpoints(pipeline, labels, families);
}

}  // namespace penstock
