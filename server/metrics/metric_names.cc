#include "server/metrics/metric_names.h"

#include <utility>

#include "engine/base/check.h"
#include "engine/base/log_writer.h"
#include "engine/observe/memory_metrics.h"
#include "engine/observe/metrics.h"
#include "engine/observe/span_counters.h"

namespace penstock {
namespace {

using enum MetricType;
using enum Metric;
using Labels = std::vector<MetricLabel>;

template <size_t kCount>
MetricLabel Label(std::string_view name, const std::array<std::string_view, kCount>& values) {
  return {name, {values.begin(), values.end()}};
}

MetricLabel Free(std::string_view name) { return {name, {}}; }

// The labels of a lane, and more.
Labels Lane(Labels more = {}) {
  Labels labels = {Free("pipeline"), Free("lane"), Free("device")};
  for (MetricLabel& label : more) labels.push_back(std::move(label));
  return labels;
}

// The label of a pipeline, and more.
Labels Pipeline(Labels more = {}) {
  more.insert(more.begin(), Free("pipeline"));
  return more;
}

// The labels of a way between two lanes.
Labels Link() { return {Free("pipeline"), Free("src"), Free("dst"), Label("kind", kLinkKindNames)}; }

Labels Method(Labels more = {}) {
  Labels labels = {Free("grpc_type"), Free("grpc_service"), Free("grpc_method")};
  for (MetricLabel& label : more) labels.push_back(std::move(label));
  return labels;
}

MetricLabel States() {
  MetricLabel label = Free("state");
  for (const StageStateInfo& info : StageStates()) label.values.push_back(info.name);
  return label;
}

std::vector<MetricInfo> MakeTable() {
  const MetricLabel mode = Label("mode", kBatchModeNames);
  const MetricLabel outcome = Label("outcome", kBatchOutcomeNames);
  const MetricLabel phase = Label("phase", kPhaseNames);
  const MetricLabel queue = Label("queue", kWorkQueueNames);
  const MetricLabel operation = Label("operation", kCheckpointOperationNames);
  const MetricLabel tier = Label("tier", kHandleTierNames);
  const MetricLabel memory_class = Label("class", kMemoryClassNames);
  const MetricLabel busy = {"kind", {"compute"}};
  const MetricLabel level = {"level", {"debug", "info", "warning", "error"}};
  return {
      // Lanes.
      {kStageTime,
       "penstock_stage_time_seconds_total",
       "Time of a lane by what it was doing or waiting for; the rates of all states add up to one.",
       kCounter,
       Lane({States()}),
       {}},
      {kDeviceBusy,
       "penstock_device_busy_seconds_total",
       "Time in which a CPU ran a lane's actions, as the kernel accounts for it.",
       kCounter,
       Lane({busy}),
       {}},
      {kPhaseDuration, "penstock_phase_duration_seconds", "Duration of one action on one micro-batch.", kHistogram,
       Lane({phase}), PhaseBuckets()},
      {kStageInfo,
       "penstock_stage_info",
       "What a lane is; always 1.",
       kGauge,
       Lane({Free("device_uuid"), Free("rank"), Free("layers")}),
       {}},
      {kStageLastProgress,
       "penstock_stage_last_progress_timestamp_seconds",
       "When the last action of a lane ended, or the lane was made.",
       kGauge,
       Lane(),
       {}},
      {kScheduleInfo,
       "penstock_schedule_info",
       "The schedule of training steps; always 1.",
       kGauge,
       Pipeline({Free("schedule"), Free("stages"), Free("chunks"), Free("micro_batches"), Free("checkpoint_mode")}),
       {}},
      {kIdealBubble,
       "penstock_schedule_ideal_bubble_ratio",
       "Bubble that the schedule implies with equal stage costs and free links.",
       kGauge,
       Lane(),
       {}},
      {kPredictedBubble,
       "penstock_schedule_predicted_bubble_ratio",
       "Bubble that the simulator predicts from profiled costs.",
       kGauge,
       Lane(),
       {}},
      {kInflightMicroBatches,
       "penstock_inflight_micro_batches",
       "Micro-batches whose activations a lane holds for their backward.",
       kGauge,
       Lane(),
       {}},
      {kRecomputedActivationBytes,
       "penstock_recomputed_activation_bytes_total",
       "Bytes of activations that were computed a second time.",
       kCounter,
       Lane(),
       {}},
      {kOutOfMemory,
       "penstock_out_of_memory_total",
       "Actions that failed because the device's memory was full.",
       kCounter,
       Lane(),
       {}},
      {kDeviceMemory,
       "penstock_device_memory_bytes",
       "What a lane keeps on its device; the stash as it was profiled for micro-batches of its size.",
       kGauge,
       Lane({Label("kind", kMemoryKindNames)}),
       {}},
      {kDeviceMemoryLimit,
       "penstock_device_memory_limit_bytes",
       "What may be placed on a device; the machine's memory for a CPU without a limit.",
       kGauge,
       {Free("device")},
       {}},
      {kDeviceAllocator,
       "penstock_device_allocator_bytes",
       "What the process has taken of an accelerator's memory: given to tensors, and kept for the next ones.",
       kGauge,
       {Free("device"), Label("use", kAllocatorUseNames)},
       {}},
      {kMemoryReserved,
       "penstock_memory_reserved_bytes",
       "What is reserved of the host's memory in the ledger, by what for.",
       kGauge,
       {memory_class},
       {}},
      {kMemoryRefused,
       "penstock_memory_refused_total",
       "Reservations of memory that found no room.",
       kCounter,
       {memory_class},
       {}},
      {kMemoryLimit,
       "penstock_memory_limit_bytes",
       "What all classes may reserve together: --memory-limit.",
       kGauge,
       {},
       {}},
      {kMemoryProcess,
       "penstock_memory_process_bytes",
       "Resident memory of the process before it served anything, which is in no class, but for what its allocator "
       "kept.",
       kGauge,
       {},
       {}},
      {kMemoryAllocator,
       "penstock_memory_allocator_bytes",
       "Resident memory that the allocator keeps beside what is allocated: freed blocks, pages used in part, its "
       "records.",
       kGauge,
       {},
       {}},
      // Pipelines.
      {kBatchesStarted,
       "penstock_batches_started_total",
       "Mini-batches that began to run.",
       kCounter,
       Pipeline({mode}),
       {}},
      {kBatches,
       "penstock_batches_total",
       "Mini-batches that ended, by outcome.",
       kCounter,
       Pipeline({mode, outcome}),
       {}},
      {kSamples,
       "penstock_samples_total",
       "Samples of the mini-batches that ended well.",
       kCounter,
       Pipeline({mode}),
       {}},
      {kBatchDuration, "penstock_batch_duration_seconds", "Time of a mini-batch from accepted to ready.", kHistogram,
       Pipeline({mode}), CallBuckets()},
      {kRunsActive, "penstock_runs_active", "Mini-batches that run now.", kGauge, Pipeline({mode}), {}},
      {kInferenceRuns,
       "penstock_inference_runs_total",
       "Runs of the stages for inference, each for a batch of requests.",
       kCounter,
       Pipeline(),
       {}},
      {kStepNumber, "penstock_step_number", "Finished optimizer steps.", kGauge, Pipeline(), {}},
      {kLoss, "penstock_loss", "Loss of the last training batch.", kGauge, Pipeline(), {}},
      {kNonfiniteSteps,
       "penstock_nonfinite_steps_total",
       "Steps that were not applied because the loss or a gradient was not finite.",
       kCounter,
       Pipeline({Label("kind", kNonfiniteKindNames)}),
       {}},
      {kQueueDepth, "penstock_queue_depth", "Micro-batches that wait.", kGauge, Pipeline({queue}), {}},
      {kQueueCapacity, "penstock_queue_capacity", "Micro-batches that may wait.", kGauge, Pipeline({queue}), {}},
      {kQueueOldestAge,
       "penstock_queue_oldest_age_seconds",
       "Age of the head of the queue; 0 when empty.",
       kGauge,
       Pipeline({queue}),
       {}},
      {kQueueWait, "penstock_queue_wait_seconds", "Time in the queue.", kHistogram, Pipeline({queue}), CallBuckets()},
      {kAdmissionRejected,
       "penstock_admission_rejected_total",
       "Requests that were refused.",
       kCounter,
       Pipeline({Label("reason", kRejectReasonNames)}),
       {}},
      // Links.
      {kLinkBytes, "penstock_link_bytes_total", "Bytes that one lane has sent to another.", kCounter, Link(), {}},
      {kLinkTransferSeconds,
       "penstock_link_transfer_seconds_total",
       "Time that sending took, as the sender sees it.",
       kCounter,
       Link(),
       {}},
      // The group of ranks.
      {kGroupRanks, "penstock_group_ranks", "Ranks that take part in the group; only rank 0 has it.", kGauge, {}, {}},
      {kGroupRanksExpected,
       "penstock_group_ranks_expected",
       "Ranks that the group needs to be complete: --world-size; only rank 0 has it.",
       kGauge,
       {},
       {}},
      {kGroupEpoch,
       "penstock_group_epoch",
       "Life of the leader that the group belongs to; higher at each of its starts.",
       kGauge,
       {},
       {}},
      {kGroupGeneration,
       "penstock_group_generation",
       "How often the group has been formed, or was about to be, within its epoch.",
       kGauge,
       {},
       {}},
      {kGroupReformings,
       "penstock_group_reformings_total",
       "How often the group was complete again, after it had lost a rank or an edge; only rank 0 has it.",
       kCounter,
       {},
       {}},
      {kGroupRefused,
       "penstock_group_refused_total",
       "Processes that wanted to join the group and were refused; only rank 0 has it.",
       kCounter,
       {},
       {}},
      {kPeerReceivedBytes,
       "penstock_peer_received_bytes_total",
       "Bytes of tensors that have come from another rank to this one.",
       kCounter,
       {Label("carrier", kCarrierNames), Free("from"), Free("to")},
       {}},
      {kPeerReceivedMessages,
       "penstock_peer_received_messages_total",
       "Messages with tensors that have come from another rank to this one.",
       kCounter,
       {Label("carrier", kCarrierNames), Free("from"), Free("to")},
       {}},
      {kPeerDroppedMessages,
       "penstock_peer_dropped_messages_total",
       "Messages that have come by a carrier and were dropped.",
       kCounter,
       {Label("carrier", kCarrierNames), Label("reason", kPeerDropNames)},
       {}},
      // Handles.
      {kHandles, "penstock_handles", "Result handles that live now.", kGauge, {Label("state", kHandleGaugeNames)}, {}},
      {kHandleBytes, "penstock_handle_bytes", "Bytes that handles hold.", kGauge, {tier}, {}},
      {kHandleLimitBytes, "penstock_handle_limit_bytes", "Bytes that handles may hold.", kGauge, {tier}, {}},
      {kHandlesEnded,
       "penstock_handles_ended_total",
       "Handles that ended.",
       kCounter,
       {Label("reason", kHandleEndNames)},
       {}},
      // Checkpoints.
      {kCheckpointDuration, "penstock_checkpoint_duration_seconds", "Duration of a save or restore.", kHistogram,
       Pipeline({operation}), CheckpointBuckets()},
      {kCheckpointFailures,
       "penstock_checkpoint_failures_total",
       "Saves and restores that failed.",
       kCounter,
       Pipeline({operation}),
       {}},
      {kCheckpointLastSuccess,
       "penstock_checkpoint_last_success_timestamp_seconds",
       "When the last good save ended, or the pipeline was made.",
       kGauge,
       Pipeline(),
       {}},
      {kCheckpointSize, "penstock_checkpoint_size_bytes", "Size of the last good save.", kGauge, Pipeline(), {}},
      // Calls.
      {kGrpcStarted, "grpc_server_started_total", "Calls that began.", kCounter, Method(), {}},
      {kGrpcReceived, "grpc_server_msg_received_total", "Messages that arrived.", kCounter, Method(), {}},
      {kGrpcSent, "grpc_server_msg_sent_total", "Messages that were sent.", kCounter, Method(), {}},
      {kGrpcHandled,
       "grpc_server_handled_total",
       "Calls that ended, by status code.",
       kCounter,
       Method({Label("grpc_code", kGrpcCodeNames)}),
       {}},
      {kGrpcHandling, "grpc_server_handling_seconds", "Duration of a call on the server.", kHistogram, Method(),
       CallBuckets()},
      // The daemon.
      {kReady, "penstock_ready", "1 if every condition of readiness holds.", kGauge, {}, {}},
      {kReadyCondition,
       "penstock_ready_condition",
       "1 if this condition of readiness holds.",
       kGauge,
       {Label("condition", kReadyConditionNames)},
       {}},
      {kCertificateExpiry,
       "penstock_certificate_expiry_timestamp_seconds",
       "When the certificate that new connections get ends; absent without TLS.",
       kGauge,
       {{"certificate", {"server"}}},
       {}},
      {kCredentialFilesRefused,
       "penstock_credential_files_refused_total",
       "Times that certificate, key, identity map or tokens had changed and could not be used; the old ones went on.",
       kCounter,
       {},
       {}},
      {kCallsDenied,
       "penstock_calls_denied_total",
       "Calls that were not let in, by reason.",
       kCounter,
       {Label("reason", kDenialNames)},
       {}},
      {kAuditRecords,
       "penstock_audit_records_total",
       "Records of the audit log: written, dropped because too many waited, or failed to be written.",
       kCounter,
       {Label("outcome", kAuditOutcomeNames)},
       {}},
      {kBuildInfo,
       "penstock_build_info",
       "What this build is; always 1.",
       kGauge,
       {Free("version"), Free("commit"), Free("cuda"), Free("torch")},
       {}},
      {kLogMessages, "penstock_log_messages_total", "Log lines that were written.", kCounter, {level}, {}},
      {kLogDropped,
       "penstock_log_dropped_total",
       "Log lines that were not written: too many of one message, no room because nobody reads, or an error of the "
       "output.",
       kCounter,
       {Label("cause", kLogDropNames)},
       {}},
      {kTraceDropped,
       "penstock_trace_dropped_events_total",
       "Trace records that newer ones have overwritten; a ring that is full does so all the time.",
       kCounter,
       {},
       {}},
      {kTraceSpans,
       "penstock_trace_spans_total",
       "Spans of requests by where they go: sent ones were taken, failed ones were not, dropped ones found the queue "
       "full.",
       kCounter,
       {Label("target", kSpanTargetNames), Label("outcome", kSpanOutcomeNames)},
       {}},
      {kStateClamped,
       "penstock_state_clamped_seconds_total",
       "Time by which changes of state were put off so that no counter falls.",
       kCounter,
       {},
       {}},
      {kMetricsCollect, "penstock_metrics_collect_seconds", "Time that collecting this page took.", kGauge, {}, {}},
      // The process.
      {kProcessCpu, "process_cpu_seconds_total", "User and system time of the process.", kCounter, {}, {}},
      {kProcessResident, "process_resident_memory_bytes", "Resident memory of the process.", kGauge, {}, {}},
      {kProcessOpenFiles, "process_open_fds", "Open file descriptors.", kGauge, {}, {}},
      {kProcessMaximumFiles, "process_max_fds", "File descriptors that may be open.", kGauge, {}, {}},
      {kProcessStartTime, "process_start_time_seconds", "When the process started.", kGauge, {}, {}},
  };
}

}  // namespace

const std::vector<MetricInfo>& MetricTable() {
  static const auto* table = [] {
    auto* rows = new std::vector<MetricInfo>(MakeTable());
    for (size_t i = 0; i < rows->size(); ++i) PENSTOCK_CHECK((*rows)[i].metric == static_cast<Metric>(i));
    PENSTOCK_CHECK(rows->size() == static_cast<size_t>(kProcessStartTime) + 1);
    return rows;
  }();
  return *table;
}

const MetricInfo& InfoOf(Metric metric) { return MetricTable()[static_cast<size_t>(metric)]; }

std::string_view NameOf(MetricType type) {
  switch (type) {
    case kCounter:
      return "counter";
    case kGauge:
      return "gauge";
    case kHistogram:
      return "histogram";
  }
  PENSTOCK_CHECK(false);
}

}  // namespace penstock
