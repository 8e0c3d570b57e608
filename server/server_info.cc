#include "server/server_info.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"
#include "engine/optim/optimizer.h"
#include "engine/schedule/generators.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

void AddLimits(const DaemonOptions& options, const HandleBudget::Limits& budget,
               google::protobuf::Map<std::string, int64_t>* limits) {
  (*limits)["max-pipelines"] = options.max_pipelines;
  (*limits)["max-message-bytes"] = options.max_message_bytes;
  (*limits)["max-calls-per-caller"] = options.calls_per_caller;
  (*limits)["handle-bytes"] = budget.bytes;
  (*limits)["handle-bytes-per-caller"] = budget.bytes_per_owner;
  (*limits)["max-handles"] = budget.handles;
  (*limits)["max-handles-per-caller"] = budget.handles_per_owner;
  (*limits)["lease"] = absl::ToInt64Seconds(options.default_lease);
  (*limits)["min-lease"] = absl::ToInt64Seconds(options.min_lease);
  (*limits)["max-lease"] = absl::ToInt64Seconds(options.max_lease);
  (*limits)["train-queue-calls"] = options.train_queue_calls;
  (*limits)["train-queue-bytes"] = options.train_queue_bytes;
  (*limits)["infer-queue-calls"] = options.infer_queue_calls;
  (*limits)["infer-queue-bytes"] = options.infer_queue_bytes;
  (*limits)["max-open-graphs"] = options.open_graphs;
  (*limits)["max-model-bytes"] = options.max_model_bytes;
  (*limits)["model-root-bytes"] = options.model_root_bytes;
}

v1::RankInfo InfoOf(const RankView& rank, bool draining) {
  const RankDescription& said = rank.description;
  v1::RankInfo info;
  info.set_rank(said.rank.value());
  info.set_state(!rank.member ? v1::RANK_STATE_MISSING : draining ? v1::RANK_STATE_DRAINING : v1::RANK_STATE_MEMBER);
  *info.mutable_since() = ToTimestamp(rank.since);
  info.set_problem(std::string(rank.problem.message()));
  info.set_host(said.host);
  info.set_address(said.address);
  info.set_carrier(said.carrier);
  for (const RankDevice& device : said.devices) {
    v1::DeviceInfo* added = info.add_devices();
    added->set_name(said.rank == Rank(0) ? device.name : absl::StrCat(said.rank.value(), "/", device.name));
    added->set_memory_limit_bytes(device.memory_bytes);
  }
  if (rank.clock.has_value()) {
    info.mutable_clock()->set_seconds(static_cast<double>(rank.clock->nanos) * 1e-9);
    info.mutable_clock()->set_uncertainty_seconds(static_cast<double>(rank.clock->uncertainty_nanos) * 1e-9);
  }
  return info;
}

}  // namespace

v1::GroupInfo DescribeGroup(const GroupView& group) {
  v1::GroupInfo info;
  info.set_world_size(static_cast<int>(group.ranks.size()));
  info.set_complete(group.complete);
  info.set_epoch(group.epoch.value());
  info.set_generation(group.generation);
  info.set_reformings(group.reformings);
  for (const auto& [rank, view] : group.ranks) *info.add_ranks() = InfoOf(view, group.draining);
  for (const auto& [from, sender] : group.ranks) {
    for (const auto& [to, receiver] : group.ranks) {
      const auto link = receiver.received.find(from);
      if (link == receiver.received.end()) continue;
      v1::RankLink* added = info.add_links();
      added->set_from_rank(from.value());
      added->set_to_rank(to.value());
      added->set_carrier(receiver.description.carrier);
      added->set_messages(link->second.messages);
      added->set_bytes(link->second.bytes);
    }
  }
  return info;
}

v1::ServerInfo DescribeServer(const ServerFacts& facts) {
  v1::ServerInfo info;
  info.set_version(PENSTOCK_VERSION);
  info.set_epoch(facts.epoch.value());
  *info.mutable_start_time() = ToTimestamp(facts.start_time);
  for (const Device& device : *facts.devices) {
    v1::DeviceInfo* added = info.add_devices();
    added->set_name(device.name);
    for (int core : device.cores) added->add_cores(core);
    added->set_memory_limit_bytes(device.memory_limit_bytes);
  }
  for (const char* feature :
       {"train", "infer", "handles", "checkpoints", "open_inference_protocol", "health", "reflection"}) {
    info.add_features(feature);
  }
  if (!facts.options->model_root.empty()) info.add_features("exported_programs");
  if (facts.options->allow_model_upload) info.add_features("model_upload");
  AddLimits(*facts.options, facts.handles->options().budget, info.mutable_limits());
  (*info.mutable_versions())["torch"] = PENSTOCK_TORCH_VERSION;
  (*info.mutable_versions())["grpc"] = grpc::Version();
  (*info.mutable_versions())["protobuf"] = google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
  info.set_api_address(facts.api_address);
  info.set_metrics_address(facts.metrics_address);
  info.set_state(std::string(facts.state));
  const HandleStore::Counts counts = facts.handles->TotalCounts();
  info.set_handles(counts.live());
  info.set_handle_bytes(counts.bytes);
  for (const std::string& kind : LayerKinds()) info.add_layers(kind);
  for (const std::string& model : ReferenceModels()) info.add_models(model);
  for (const ScheduleKind& kind : ScheduleKinds()) info.add_schedules(std::string(kind.name));
  for (const std::string& name : OptimizerNames()) info.add_optimizers(name);
  for (const std::string& name : LossNames()) info.add_losses(name);
  return info;
}

}  // namespace penstock
