// What the planner made of a specification.

#include "absl/strings/str_cat.h"
#include "server/rpc/proto_convert.h"

namespace penstock {
namespace {

v1::StagePlan ToProto(const StagePlan& stage, int number) {
  v1::StagePlan message;
  message.set_stage(number);
  message.set_device(stage.device);
  message.set_lane(stage.lane);
  message.set_rank(stage.rank);
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

}  // namespace

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
