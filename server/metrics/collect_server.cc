#include <string>

#include "engine/base/log.h"
#include "engine/base/log_sink.h"
#include "engine/observe/allocator_statistics.h"
#include "engine/observe/process_statistics.h"
#include "engine/observe/span_counters.h"
#include "server/metrics/family_set.h"
#include "server/metrics/metrics_collector.h"

namespace penstock {
namespace {

// One sample per value of a family's only label.
template <typename Names, typename ValueOf>
void AddEach(FamilySet* families, Metric metric, const Names& names, ValueOf value_of) {
  for (size_t i = 0; i < names.size(); ++i) families->Add(metric, {std::string(names[i])}, value_of(i));
}

void CollectMethod(const MethodMetrics& method, FamilySet* families) {
  const LabelValues labels = {method.type, method.service, method.method};
  families->Add(Metric::kGrpcStarted, labels, CountOf(method.started));
  families->Add(Metric::kGrpcReceived, labels, CountOf(method.messages_received));
  families->Add(Metric::kGrpcSent, labels, CountOf(method.messages_sent));
  for (size_t code = 0; code < kGrpcCodeNames.size(); ++code) {
    LabelValues with_code = labels;
    with_code.emplace_back(kGrpcCodeNames[code]);
    families->Add(Metric::kGrpcHandled, with_code, CountOf(method.handled_by_code[code]));
  }
  families->Add(Metric::kGrpcHandling, labels, method.duration.Snapshot());
}

}  // namespace

void CollectGroup(const GroupFigures& group, Rank self, FamilySet* families) {
  families->Add(Metric::kGroupEpoch, {}, group.epoch);
  families->Add(Metric::kGroupGeneration, {}, group.generation);
  for (size_t carrier = 0; carrier < kCarrierNames.size(); ++carrier) {
    const PeerFigures& received = group.received[carrier];
    const std::string name(kCarrierNames[carrier]);
    for (const auto& [peer, link] : received.from) {
      const LabelValues labels = {name, ToString(peer), ToString(self)};
      families->Add(Metric::kPeerReceivedBytes, labels, static_cast<double>(link.bytes));
      families->Add(Metric::kPeerReceivedMessages, labels, static_cast<double>(link.messages));
    }
    for (size_t why = 0; why < kPeerDropNames.size(); ++why) {
      families->Add(Metric::kPeerDroppedMessages, {name, std::string(kPeerDropNames[why])},
                    static_cast<double>(received.dropped[why]));
    }
  }
  if (self != Rank(0)) return;
  families->Add(Metric::kGroupRanks, {}, group.present);
  families->Add(Metric::kGroupRanksExpected, {}, group.expected);
  families->Add(Metric::kGroupReformings, {}, static_cast<double>(group.reformings));
  families->Add(Metric::kGroupRefused, {}, static_cast<double>(group.refused));
}

void CollectServer(const ServerMetrics& server, FamilySet* families) {
  AddEach(families, Metric::kHandles, kHandleGaugeNames, [&](size_t i) { return server.handles.at(i).value(); });
  AddEach(families, Metric::kHandleBytes, kHandleTierNames,
          [&](size_t i) { return server.handle_bytes.at(i).value(); });
  AddEach(families, Metric::kHandleLimitBytes, kHandleTierNames,
          [&](size_t i) { return server.handle_limit_bytes.at(i).value(); });
  AddEach(families, Metric::kHandlesEnded, kHandleEndNames,
          [&](size_t i) { return CountOf(server.handles_ended.at(i)); });
  for (const DeviceDescription& device : server.devices()) {
    families->Add(Metric::kDeviceMemoryLimit, {device.name}, static_cast<double>(device.memory_limit_bytes));
    const auto bytes = device.allocator ? device.allocator() : std::nullopt;
    if (!bytes) continue;
    families->Add(Metric::kDeviceAllocator, {device.name, "allocated"}, static_cast<double>(bytes->allocated));
    families->Add(Metric::kDeviceAllocator, {device.name, "cached"}, static_cast<double>(bytes->cached));
  }
  for (const MethodMetrics* method : server.methods()) CollectMethod(*method, families);

  for (size_t target = 0; target < kSpanTargetNames.size(); ++target) {
    for (size_t outcome = 0; outcome < kSpanOutcomeNames.size(); ++outcome) {
      families->Add(Metric::kTraceSpans,
                    {std::string(kSpanTargetNames[target]), std::string(kSpanOutcomeNames[outcome])},
                    CountOf(SpansOf(static_cast<SpanTarget>(target)).at(outcome)));
    }
  }

  families->Add(Metric::kReady, {}, server.ready.value());
  AddEach(families, Metric::kReadyCondition, kReadyConditionNames,
          [&](size_t i) { return server.ready_conditions.at(i).value(); });
  if (const double end = server.certificate_end.value(); end > 0) {
    families->Add(Metric::kCertificateExpiry, {"server"}, end);
  }
  families->Add(Metric::kCredentialFilesRefused, {}, CountOf(server.credential_files_refused));
  AddEach(families, Metric::kCallsDenied, kDenialNames, [&](size_t i) { return CountOf(server.calls_denied.at(i)); });
  AddEach(families, Metric::kAuditRecords, kAuditOutcomeNames,
          [&](size_t i) { return CountOf(server.audit_records.at(i)); });
  const BuildDescription build = server.build();
  families->Add(Metric::kBuildInfo, {build.version, build.commit, build.cuda, build.torch}, 1);
  AddEach(families, Metric::kLogMessages, InfoOf(Metric::kLogMessages).labels[0].values,
          [](size_t i) { return static_cast<double>(LoggedLines(static_cast<LogLevel>(i))); });
  AddEach(families, Metric::kLogDropped, kLogDropNames,
          [](size_t i) { return static_cast<double>(DroppedLogLines(static_cast<LogDrop>(i))); });
}

void CollectMemory(const MemoryMetrics& memory, Rank self, FamilySet* families) {
  families->Add(Metric::kMemoryAllocator, {}, static_cast<double>(ReadAllocatorStatistics().kept_bytes));
  if (self != Rank(0)) return;
  AddEach(families, Metric::kMemoryReserved, kMemoryClassNames,
          [&](size_t i) { return memory.reserved.at(i).value(); });
  AddEach(families, Metric::kMemoryRefused, kMemoryClassNames, [&](size_t i) { return CountOf(memory.refused.at(i)); });
  families->Add(Metric::kMemoryLimit, {}, memory.limit.value());
  families->Add(Metric::kMemoryProcess, {}, memory.process.value());
}

void CollectProcess(FamilySet* families) {
  const absl::StatusOr<ProcessStatistics> process = ReadProcessStatistics();
  if (!process.ok()) return;  // no numbers are better than wrong ones
  families->Add(Metric::kProcessCpu, {}, process->cpu_seconds);
  families->Add(Metric::kProcessResident, {}, static_cast<double>(process->resident_bytes));
  families->Add(Metric::kProcessOpenFiles, {}, static_cast<double>(process->open_files));
  families->Add(Metric::kProcessMaximumFiles, {}, static_cast<double>(process->file_limit));
  families->Add(Metric::kProcessStartTime, {}, process->start_time_seconds);
}

}  // namespace penstock
