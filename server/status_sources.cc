#include "server/status_sources.h"

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/store/checkpoint_file.h"
#include "server/http/listen_address.h"

namespace penstock {
namespace {

constexpr int kMostPipelines = 1024;  // that --max-pipelines allows

}  // namespace

absl::Status CheckAdminAddress(const std::string& listen, bool insecure) {
  PENSTOCK_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(listen, "--admin-listen"));
  const bool loopback = address.host.rfind("127.", 0) == 0 || address.host == "::1";
  if (loopback || insecure) return absl::OkStatus();
  return InvalidField("--admin-listen", "shows everything to everybody beyond this host and needs --insecure", listen);
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
  for (const PipelineEntry& entry : pipelines.List("", kMostPipelines)) {
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
  for (const PipelineEntry& entry : pipelines.List("", kMostPipelines)) {
    if (entry.pipeline == nullptr) continue;
    for (const CheckpointInfo& info : entry.pipeline->ListCheckpoints()) {
      rows.push_back({.pipeline = entry.name,
                      .id = info.id,
                      .step = info.step,
                      .unix_seconds = static_cast<double>(absl::ToUnixNanos(info.create_time)) * 1e-9,
                      .bytes = info.bytes});
    }
  }
  return rows;
}

}  // namespace penstock
