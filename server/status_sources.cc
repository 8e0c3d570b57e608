#include "server/status_sources.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "proto/message_json.h"
#include "server/http/listen_address.h"
#include "server/rpc/convert/checkpoint_convert.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/services/insight_service.h"

namespace penstock {
namespace {

constexpr int kMaxPipelines = 1024;  // that --max-pipelines allows

// Of `state`: "ready".
std::string StateWord(PipelineEntry::State state) {
  switch (state) {
    case PipelineEntry::State::kCreating:
      return "creating";
    case PipelineEntry::State::kReady:
      return "ready";
    case PipelineEntry::State::kDraining:
      return "draining";
    case PipelineEntry::State::kDeleting:
      return "deleting";
    case PipelineEntry::State::kFailed:
      return "failed";
    case PipelineEntry::State::kReforming:
      return "reforming";
    case PipelineEntry::State::kUnloading:
      return "unloading";
    case PipelineEntry::State::kUnloaded:
      return "unloaded";
  }
  return "";
}

std::string StateWord(v1::RankState state) {
  switch (state) {
    case v1::RANK_STATE_MEMBER:
      return "member";
    case v1::RANK_STATE_DRAINING:
      return "draining";
    default:
      return "missing";
  }
}

std::string StatisticsText(const PipelineEntry& entry, const ServiceEnvironment& environment) {
  // As `penstock status` has it of one that is being made or deleted.
  if (entry.pipeline == nullptr) return MessageToJsonText(v1::PipelineStatistics());
  return MessageToJsonText(DescribeStatistics(*entry.pipeline, environment));
}

}  // namespace

std::vector<PipelineRow> DescribePipelines(const PipelineTable& pipelines) {
  std::vector<PipelineRow> rows;
  for (const PipelineEntry& entry : pipelines.List("", kMaxPipelines)) {
    rows.push_back({.name = entry.name, .state = StateWord(entry.state)});
  }
  return rows;
}

GroupRows DescribeRanks(const v1::GroupInfo& group) {
  GroupRows rows;
  for (const v1::RankInfo& rank : group.ranks()) {
    const auto name = [](std::string* out, const v1::DeviceInfo& device) { out->append(device.name()); };
    rows.ranks.push_back(
        {.rank = rank.rank(),
         .state = StateWord(rank.state()),
         .since_unix_seconds = static_cast<double>(rank.since().seconds()) + rank.since().nanos() * 1e-9,
         .host = rank.host(),
         .address = rank.address(),
         .carrier = rank.carrier(),
         .devices = absl::StrJoin(rank.devices(), ", ", name),
         .problem = rank.problem()});
  }
  for (const v1::RankLink& link : group.links()) {
    rows.links.push_back({.from = link.from_rank(),
                          .to = link.to_rank(),
                          .carrier = link.carrier(),
                          .messages = link.messages(),
                          .bytes = link.bytes()});
  }
  return rows;
}

std::vector<OwnerRow> DescribeOwners(const HandleStore& handles) {
  const HandleBudget::Limits& limits = handles.options().budget;
  std::vector<OwnerRow> rows;
  for (const auto& [owner, use] : handles.UseByOwner()) {
    rows.push_back({.owner = owner,
                    .handles = use.handles,
                    .handles_limit = limits.handles_per_owner,
                    .bytes = use.bytes,
                    .bytes_limit = limits.bytes_per_owner});
  }
  return rows;
}

MemoryRows DescribeMemory(const MemoryLedger& memory) {
  const MemoryLedger::Statement state = memory.State();
  MemoryRows rows{.limit_bytes = state.limit_bytes, .bytes = state.bytes};
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    const MemoryLedger::ClassUse& use = state.classes[i];
    rows.classes.push_back({.name = std::string(kMemoryClassNames[i]),
                            .bytes = use.bytes,
                            .peak_bytes = use.peak_bytes,
                            .limit_bytes = use.limit_bytes,
                            .kept_bytes = use.kept_bytes,
                            .reservations = use.reservations,
                            .refusals = use.refusals});
  }
  for (const auto& [holder, bytes] : state.holders) {
    rows.holders.push_back({std::string(NameOf(holder.kind)), holder.identity, holder.pipeline, bytes});
  }
  return rows;
}

CommandOutputs DescribeForPrograms(const ServiceEnvironment& environment) {
  CommandOutputs outputs;
  outputs.pipelines = [environment] {
    std::vector<std::string> list;
    for (const PipelineEntry& entry : environment.pipelines->List("", kMaxPipelines)) {
      list.push_back(absl::StrCat("{\"pipeline\":", MessageToJsonText(ToProto(entry, environment.handles->epoch())),
                                  ",\"statistics\":", StatisticsText(entry, environment), "}"));
    }
    return absl::StrCat("[", absl::StrJoin(list, ", "), "]");
  };
  outputs.pipeline = [environment](const std::string& name) -> std::string {
    const auto entry = environment.pipelines->Get(name);
    return entry.ok() ? MessageToJsonText(ToProto(*entry, environment.handles->epoch())) : "null";
  };
  outputs.statistics = [environment](const std::string& name) -> std::string {
    const auto entry = environment.pipelines->Get(name);
    return entry.ok() ? StatisticsText(*entry, environment) : "null";
  };
  outputs.checkpoints = [environment] {
    std::vector<std::string> list;
    CheckpointMessages messages;
    for (const PipelineEntry& entry : environment.pipelines->List("", kMaxPipelines)) {
      if (entry.pipeline == nullptr) continue;
      for (const CheckpointInfo& info : entry.pipeline->ListCheckpoints()) {
        if (info.place.automatic) continue;  // as a list that nobody asked for them
        list.push_back(MessageToJsonText(messages.Make(info, /*pipeline_exists=*/true)));
      }
    }
    return absl::StrCat("[", absl::StrJoin(list, ", "), "]");
  };
  return outputs;
}

absl::Status CheckAdminAddress(const std::string& listen) {
  PENSTOCK_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(listen, "--admin-listen"));
  if (address.IsLoopback()) return absl::OkStatus();
  return InvalidField("--admin-listen", "must be an address of this host alone: the pages ask nobody who he is",
                      listen);
}

std::vector<SettingRow> DescribeSettings(const DaemonOptions& options) {
  std::vector<SettingRow> rows;
  for (const DaemonOptions::Setting& setting : options.settings) {
    rows.push_back({setting.name, setting.value, setting.origin, setting.help});
  }
  return rows;
}

std::vector<HandleRow> DescribeHandles(const PipelineTable& pipelines, const HandleStore& handles) {
  std::vector<HandleRow> rows;
  for (const PipelineEntry& entry : pipelines.List("", kMaxPipelines)) {
    const HandleStore::Counts counts = handles.CountsOf(entry.name);
    const auto in = [&](HandleState state) { return counts.by_state[static_cast<size_t>(state)]; };
    rows.push_back({.pipeline = entry.name,
                    .pending = in(HandleState::kPending),
                    .ready = in(HandleState::kReady),
                    .failed = in(HandleState::kFailed),
                    .bytes = counts.bytes,
                    .created = counts.created});
  }
  return rows;
}

std::vector<CheckpointRow> DescribeCheckpoints(const PipelineTable& pipelines) {
  std::vector<CheckpointRow> rows;
  for (const PipelineEntry& entry : pipelines.List("", kMaxPipelines)) {
    if (entry.pipeline == nullptr) continue;
    for (const CheckpointInfo& info : entry.pipeline->ListCheckpoints()) {
      if (info.place.automatic) continue;
      rows.push_back({.pipeline = entry.name,
                      .id = info.id,
                      .step = info.step,
                      .unix_seconds = static_cast<double>(absl::ToUnixNanos(info.create_time)) * 1e-9,
                      .bytes = info.bytes,
                      .state = info.damage.empty() ? "complete" : "damaged"});
    }
  }
  return rows;
}

}  // namespace penstock
