#include "server/ranks/build_convert.h"

#include <ATen/ops/from_blob.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

constexpr char kProgramFile[] = "program";

void ClearDevices(std::vector<LayerSpec>* layers) {
  for (LayerSpec& layer : *layers) {
    layer.device.clear();
    ClearDevices(&layer.layers);
  }
}

void SetStage(const StagePlan& stage, peer::v1::BuildStages::Stage* message) {
  message->set_first_layer(stage.first_layer);
  message->mutable_layers()->Add(stage.layers.begin(), stage.layers.end());
  message->set_device(stage.device);
  message->set_lane(stage.lane);
  message->set_rank(stage.rank.value());
  message->set_forward_seconds(stage.forward_seconds);
  message->set_backward_seconds(stage.backward_seconds);
  message->set_input_gradient_seconds(stage.input_gradient_seconds);
  message->set_weight_gradient_seconds(stage.weight_gradient_seconds);
  message->set_recompute_seconds(stage.recompute_seconds);
  message->set_parameter_bytes(stage.parameter_bytes);
  message->set_optimizer_bytes(stage.optimizer_bytes);
  message->set_undo_bytes(stage.undo_bytes);
  message->set_input_bytes(stage.input_bytes);
  message->set_stash_bytes(stage.stash_bytes);
  message->set_peak_activation_bytes(stage.peak_activation_bytes);
}

StagePlan StageFrom(const peer::v1::BuildStages::Stage& message) {
  StagePlan stage;
  stage.first_layer = message.first_layer();
  stage.layers.assign(message.layers().begin(), message.layers().end());
  stage.device = message.device();
  stage.lane = message.lane();
  stage.rank = Rank(message.rank());
  stage.forward_seconds = message.forward_seconds();
  stage.backward_seconds = message.backward_seconds();
  stage.input_gradient_seconds = message.input_gradient_seconds();
  stage.weight_gradient_seconds = message.weight_gradient_seconds();
  stage.recompute_seconds = message.recompute_seconds();
  stage.parameter_bytes = message.parameter_bytes();
  stage.optimizer_bytes = message.optimizer_bytes();
  stage.undo_bytes = message.undo_bytes();
  stage.input_bytes = message.input_bytes();
  stage.stash_bytes = message.stash_bytes();
  stage.peak_activation_bytes = message.peak_activation_bytes();
  return stage;
}

// Stages follow one another, and lanes are numbered from 0 on; all stages of a lane are on one rank.
absl::Status CheckStages(const std::vector<StagePlan>& stages) {
  if (stages.empty()) return BadRankMessage("build.stages", "must not be empty", "none");
  int layers = 0;
  std::map<int, Rank> rank_of_lane;
  for (const StagePlan& stage : stages) {
    if (stage.first_layer != layers || stage.layers.empty()) {
      return BadRankMessage("build.stages.first_layer", absl::StrCat("must be ", layers),
                            absl::StrCat(stage.first_layer));
    }
    layers += static_cast<int>(stage.layers.size());
    if (stage.lane < 0 || stage.lane >= static_cast<int>(stages.size())) {
      return BadRankMessage("build.stages.lane", absl::StrCat("must lie in [0, ", stages.size(), ")"),
                            absl::StrCat(stage.lane));
    }
    const Rank of_lane = rank_of_lane.try_emplace(stage.lane, stage.rank).first->second;
    if (stage.rank != of_lane) {
      return BadRankMessage("build.stages.rank",
                            absl::StrCat("must be that of the others on lane ", stage.lane, ", ", of_lane.value()),
                            absl::StrCat(stage.rank.value()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEdge(const char* field, int from, int to, size_t stages) {
  if (from >= 0 && from < to && to < static_cast<int>(stages)) return absl::OkStatus();
  return BadRankMessage(field, "must go from a stage to a later one", absl::StrCat(from, " to ", to));
}

}  // namespace

peer::v1::BuildStages ToProto(const std::string& name, uint32_t generation, const PipelineSpec& spec,
                              const Plan& plan) {
  PipelineSpec built = spec;
  built.devices.clear();
  built.model.layer_devices.clear();
  ClearDevices(&built.model.layers);
  built.cut = {};
  built.schedule = plan.schedule;
  built.limits.open = {};
  peer::v1::BuildStages message;
  message.set_name(name);
  message.set_generation(generation);
  *message.mutable_spec() = ToProto(built);
  for (const StagePlan& stage : plan.stages) SetStage(stage, message.add_stages());
  for (const SkipRoute& route : plan.skips) {
    peer::v1::BuildStages::Skip* skip = message.add_skips();
    skip->set_from(route.edge.from);
    skip->set_to(route.edge.to);
    skip->set_bytes(route.bytes);
    for (const SkipName& one : route.names) {
      peer::v1::BuildStages::SkipName* to = skip->add_names();
      to->set_skip_namespace(one.skip_namespace);
      to->set_name(one.name);
    }
  }
  message.set_micro_batch_rows(plan.micro_batch_rows);
  message.set_undo(plan.undo);
  message.set_hop_seconds(plan.hop_seconds);
  for (const StageTransfer& one : plan.transfers) {
    peer::v1::BuildStages::Transfer* transfer = message.add_transfers();
    transfer->set_from(one.from);
    transfer->set_to(one.to);
    transfer->set_bytes(one.bytes);
    transfer->set_latency_seconds(one.latency_seconds);
    transfer->set_transfer_seconds(one.transfer_seconds);
  }
  return message;
}

absl::StatusOr<StagesToBuild> FromProto(const peer::v1::BuildStages& message) {
  StagesToBuild to{.name = message.name()};
  PENSTOCK_ASSIGN_OR_RETURN(to.spec, FromProto(message.spec()));
  to.spec.limits.open = {};
  for (const auto& stage : message.stages()) to.plan.stages.push_back(StageFrom(stage));
  PENSTOCK_RETURN_IF_ERROR(CheckStages(to.plan.stages));
  for (const auto& skip : message.skips()) {
    SkipRoute& route = to.plan.skips.emplace_back();
    route.edge = {.from = skip.from(), .to = skip.to()};
    route.bytes = skip.bytes();
    for (const auto& name : skip.names()) route.names.push_back({name.skip_namespace(), name.name()});
    PENSTOCK_RETURN_IF_ERROR(CheckEdge("build.skips", skip.from(), skip.to(), to.plan.stages.size()));
  }
  to.plan.schedule = to.spec.schedule;
  to.plan.micro_batch_rows = message.micro_batch_rows();
  to.plan.undo = message.undo();
  to.plan.hop_seconds = message.hop_seconds();
  for (const auto& transfer : message.transfers()) {
    PENSTOCK_RETURN_IF_ERROR(CheckEdge("build.transfers", transfer.from(), transfer.to(), to.plan.stages.size()));
    to.plan.transfers.push_back({.from = transfer.from(),
                                 .to = transfer.to(),
                                 .bytes = transfer.bytes(),
                                 .latency_seconds = transfer.latency_seconds(),
                                 .transfer_seconds = transfer.transfer_seconds()});
  }
  return to;
}

NamedTensors ToTensors(const std::string& program_file) {
  const auto bytes = static_cast<int64_t>(program_file.size());
  return {{kProgramFile, at::from_blob(const_cast<char*>(program_file.data()), {bytes}, at::kByte)}};
}

absl::StatusOr<std::optional<std::string>> ProgramFileOf(const NamedTensors& tensors) {
  if (tensors.empty()) return std::nullopt;
  const at::Tensor& file = tensors.front().tensor;
  if (tensors.size() != 1 || tensors.front().name != kProgramFile || !file.defined() || file.dim() != 1 ||
      file.scalar_type() != at::kByte) {
    return BadRankMessage("build.tensors", "must be the file of a program, or nothing", tensors.front().name);
  }
  return std::string(file.const_data_ptr<uint8_t>(), file.const_data_ptr<uint8_t>() + file.numel());
}

}  // namespace penstock
