// What the planner made of a specification.

#include "absl/strings/str_cat.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {
namespace {

v1::StagePlan ToProto(const StagePlan& stage, int number) {
  v1::StagePlan message;
  message.set_stage(number);
  message.set_device(stage.device);
  message.set_lane(stage.lane);
  message.set_rank(stage.rank.value());
  message.set_first_layer(stage.first_layer);
  for (const std::string& layer : stage.layers) message.add_layers(layer);
  message.set_forward_seconds(stage.forward_seconds);
  message.set_backward_seconds(stage.backward_seconds);
  message.set_input_gradient_seconds(stage.input_gradient_seconds);
  message.set_weight_gradient_seconds(stage.weight_gradient_seconds);
  message.set_recompute_seconds(stage.recompute_seconds);
  message.set_parameter_bytes(stage.parameter_bytes);
  message.set_optimizer_bytes(stage.optimizer_bytes);
  message.set_peak_activation_bytes(stage.peak_activation_bytes);
  return message;
}

v1::LayerPlan ToProto(const LayerPlan& layer) {
  v1::LayerPlan message;
  message.set_name(layer.name);
  message.set_stage(layer.stage);
  message.set_forward_seconds(layer.forward_seconds);
  message.set_backward_seconds(layer.backward_seconds);
  message.set_input_gradient_seconds(layer.input_gradient_seconds);
  message.set_weight_gradient_seconds(layer.weight_gradient_seconds);
  message.set_stash_bytes(layer.stash_bytes);
  message.set_output_bytes(layer.output_bytes);
  message.set_parameter_bytes(layer.parameter_bytes);
  message.set_cost(layer.cost);
  return message;
}

v1::SkipPlan ToProto(const SkipRoute& route) {
  v1::SkipPlan message;
  message.set_from_stage(route.edge.from);
  message.set_to_stage(route.edge.to);
  for (const SkipName& skip : route.names) {
    message.add_names(skip.skip_namespace.empty() ? skip.name : absl::StrCat(skip.skip_namespace, "/", skip.name));
  }
  message.set_bytes(route.bytes);
  return message;
}

v1::LinkPlan ToProto(const Link& link) {
  v1::LinkPlan message;
  message.set_rank(link.one.value());
  message.set_other_rank(link.other.value());
  message.set_measured(link.measured);
  message.set_latency_seconds(link.latency_seconds);
  message.set_bytes_per_second(link.bytes_per_second);
  return message;
}

v1::TransferPlan ToProto(const StageTransfer& transfer) {
  v1::TransferPlan message;
  message.set_from_stage(transfer.from);
  message.set_to_stage(transfer.to);
  message.set_bytes(transfer.bytes);
  message.set_seconds(transfer.latency_seconds + transfer.transfer_seconds);
  return message;
}

v1::PlannedMemory ToProto(const DeviceNeed& need) {
  v1::PlannedMemory message;
  message.set_device(need.device);
  for (int lane : need.lanes) message.add_lanes(lane);
  message.set_bytes(need.buffers.total());
  message.set_limit_bytes(need.limit_bytes);
  const BufferClass largest = need.buffers.largest();
  message.set_largest_class(std::string(ToString(largest)));
  message.set_largest_class_bytes(need.buffers[largest]);
  return message;
}

v1::PlanCandidate ToProto(const PlanCandidate& candidate) {
  v1::PlanCandidate message;
  *message.mutable_schedule() = ToProto(candidate.schedule);
  for (int layers : candidate.cut.balance) message.add_balance(layers);
  message.set_makespan_seconds(candidate.makespan_seconds);
  message.set_predicted_bubble(candidate.bubble);
  for (const DeviceNeed& need : candidate.memory) *message.add_memory() = ToProto(need);
  message.set_messages(candidate.messages);
  message.set_micro_batch_rows(candidate.micro_batch_rows);
  message.set_confirmed(candidate.confirmed);
  if (candidate.rehearsed_seconds) message.set_rehearsed_seconds(*candidate.rehearsed_seconds);
  return message;
}

}  // namespace

v1::ScheduleSpec ToProto(const ScheduleSpec& schedule) {
  v1::ScheduleSpec message;
  message.set_kind(schedule.kind);
  message.set_micro_batches(schedule.micro_batches);
  message.set_checkpoint(ToProto(schedule.checkpoint));
  message.set_chunks(schedule.chunks);
  if (schedule.lag.has_value()) message.set_lag(*schedule.lag);
  if (schedule.live_limit.has_value()) message.set_live_limit(*schedule.live_limit);
  if (schedule.imported != nullptr) message.set_actions(ToCsv(schedule.imported->actions));
  return message;
}

v1::PlanPipelineResponse ToProto(const PlanSearch& search) {
  v1::PlanPipelineResponse message;
  for (const PlanCandidate& candidate : search.candidates) *message.add_candidates() = ToProto(candidate);
  for (size_t i = 0; i < search.refused.size() && i < kMaxCandidates; ++i) {
    v1::RefusedCandidate* refused = message.add_refused();
    *refused->mutable_schedule() = ToProto(search.refused[i].schedule);
    *refused->mutable_why() = ToRpcStatus(search.refused[i].why);
  }
  message.set_considered(search.considered);
  message.set_complete(search.complete);
  if (search.plan.has_value()) *message.mutable_plan() = ToProto(*search.plan);
  return message;
}

v1::CheckpointMode ToProto(CheckpointMode mode) {
  switch (mode) {
    case CheckpointMode::kAlways:
      return v1::CHECKPOINT_MODE_ALWAYS;
    case CheckpointMode::kExceptLast:
      return v1::CHECKPOINT_MODE_EXCEPT_LAST;
    case CheckpointMode::kNever:
      return v1::CHECKPOINT_MODE_NEVER;
    case CheckpointMode::kSkipAdjacent:
      return v1::CHECKPOINT_MODE_SKIP_ADJACENT;
  }
  return v1::CHECKPOINT_MODE_UNSPECIFIED;
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan message;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    *message.add_stages() = ToProto(plan.stages[i], static_cast<int>(i));
  }
  for (const LayerPlan& layer : plan.layers) *message.add_layers() = ToProto(layer);
  for (const SkipRoute& route : plan.skips) *message.add_skips() = ToProto(route);
  for (const Link& link : plan.links) *message.add_links() = ToProto(link);
  for (const StageTransfer& transfer : plan.transfers) *message.add_transfers() = ToProto(transfer);
  for (const std::string& sentence : plan.why) message.add_why(sentence);
  message.set_schedule(plan.schedule.kind);
  message.set_chunks(plan.schedule.chunks);
  if (plan.schedule.lag.has_value()) message.set_lag(*plan.schedule.lag);
  if (plan.schedule.live_limit.has_value()) message.set_live_limit(*plan.schedule.live_limit);
  message.set_micro_batches(plan.schedule.micro_batches);
  message.set_checkpoint(ToProto(plan.schedule.checkpoint));
  message.set_makespan_seconds(plan.makespan_seconds);
  message.set_predicted_bubble(plan.predicted_bubble);
  message.set_ideal_bubble(plan.ideal_bubble);
  return message;
}

}  // namespace penstock
