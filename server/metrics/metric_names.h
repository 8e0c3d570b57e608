#pragma once

// The one table of what the daemon exports: every name, its type, labels, label values and buckets. The collector, the
// documentation and the tests all read it.

#include <string_view>
#include <vector>

#include "engine/observe/histogram.h"

namespace penstock {

// Every family, in the order of the table.
enum class Metric {
  kStageTime,
  kDeviceBusy,
  kPhaseDuration,
  kStageInfo,
  kStageLastProgress,
  kScheduleInfo,
  kIdealBubble,
  kPredictedBubble,
  kInflightMicroBatches,
  kRecomputedActivationBytes,
  kOutOfMemory,
  kDeviceMemory,
  kDeviceMemoryLimit,
  kDeviceAllocator,
  kMemoryReserved,
  kMemoryRefused,
  kMemoryLimit,
  kMemoryProcess,
  kMemoryAllocator,
  kBatchesStarted,
  kBatches,
  kSamples,
  kBatchDuration,
  kRunsActive,
  kInferenceRuns,
  kStepNumber,
  kLoss,
  kNonfiniteSteps,
  kQueueDepth,
  kQueueCapacity,
  kQueueOldestAge,
  kQueueWait,
  kAdmissionRejected,
  kLinkBytes,
  kLinkTransferSeconds,
  kGroupRanks,
  kGroupRanksExpected,
  kGroupEpoch,
  kGroupGeneration,
  kGroupReformings,
  kGroupRefused,
  kPeerReceivedBytes,
  kPeerReceivedMessages,
  kPeerDroppedMessages,
  kHandles,
  kHandleBytes,
  kHandleLimitBytes,
  kHandlesEnded,
  kCheckpointDuration,
  kCheckpointFailures,
  kCheckpointLastSuccess,
  kCheckpointSize,
  kGrpcStarted,
  kGrpcReceived,
  kGrpcSent,
  kGrpcHandled,
  kGrpcHandling,
  kReady,
  kReadyCondition,
  kCertificateExpiry,
  kCredentialFilesRefused,
  kCallsDenied,
  kAuditRecords,
  kBuildInfo,
  kLogMessages,
  kLogDropped,
  kTraceDropped,
  kTraceSpans,
  kStateClamped,
  kMetricsCollect,
  kProcessCpu,
  kProcessResident,
  kProcessOpenFiles,
  kProcessMaximumFiles,
  kProcessStartTime,
};

enum class MetricType { kCounter, kGauge, kHistogram };

// One label. Its possible values in the order in which they appear; none if they are free (names, numbers).
struct MetricLabel {
  std::string_view name;
  std::vector<std::string_view> values;
};

// One row of the table.
struct MetricInfo {
  Metric metric;
  std::string_view name;
  std::string_view help;
  MetricType type;
  std::vector<MetricLabel> labels;  // in the order in which the collector gives their values
  BucketBounds buckets;             // of histograms
};

// All rows, in the order of the enum.
const std::vector<MetricInfo>& MetricTable();

const MetricInfo& InfoOf(Metric metric);

// "counter", "gauge", "histogram".
std::string_view NameOf(MetricType type);

}  // namespace penstock
