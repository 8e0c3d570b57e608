#pragma once

// Where the status pages get what no metric tells: settings, handles, checkpoints, messages.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/handles/handle_store.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/serve/pipeline_table.h"
#include "penstock/v1/admin.pb.h"
#include "server/daemon_options.h"
#include "server/http/status_pages.h"
#include "server/rpc/service_environment.h"

namespace penstock {

// Fails:     FIELD_INVALID for an address that can't be read, or that others than this host could reach: the pages
//            ask nobody who he is.
absl::Status CheckAdminAddress(const std::string& listen);

std::vector<SettingRow> DescribeSettings(const DaemonOptions& options);
// By name. Those that are being made or deleted too.
std::vector<PipelineRow> DescribePipelines(const PipelineTable& pipelines);
GroupRows DescribeRanks(const v1::GroupInfo& group);
// By caller, in the order of their names.
std::vector<OwnerRow> DescribeOwners(const HandleStore& handles);
// The ledger: classes in their order, holders by size.
MemoryRows DescribeMemory(const MemoryLedger& memory);
// What commands print; without `server`.
CommandOutputs DescribeForPrograms(const ServiceEnvironment& environment);
// By pipeline, in the order of their names.
std::vector<HandleRow> DescribeHandles(const PipelineTable& pipelines, const HandleStore& handles);
std::vector<CheckpointRow> DescribeCheckpoints(const PipelineTable& pipelines);

}  // namespace penstock
