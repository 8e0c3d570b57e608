// The specification of a pipeline and what the planner made of it.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"
#include "server/rpc/proto_convert.h"

namespace penstock {
namespace {

constexpr int kMaxLayers = 4096;
constexpr int kMaxStages = 1024;
constexpr int kMaxOptions = 64;
constexpr size_t kMaxTextBytes = 256;

absl::Status SpecInvalid(const std::string& field, std::string_view problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               field + ": " + std::string(problem) + ", got " + value)
      .With("field", field)
      .With("value", value);
}

absl::Status CheckText(const std::string& text, const std::string& field) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return SpecInvalid(field, absl::StrCat("must have at most ", kMaxTextBytes, " bytes"),
                     absl::StrCat(text.size(), " bytes"));
}

absl::StatusOr<OptionMap> Options(const google::protobuf::Map<std::string, v1::Option>& options,
                                  const std::string& field) {
  if (options.size() > kMaxOptions) {
    return SpecInvalid(field, absl::StrCat("must have at most ", kMaxOptions, " entries"),
                       absl::StrCat(options.size()));
  }
  OptionMap map;
  for (const auto& [name, option] : options) {
    const std::string entry = field + "[" + Shortened(name) + "]";
    switch (option.value_case()) {
      case v1::Option::kBoolValue:
        map[name] = option.bool_value();
        break;
      case v1::Option::kIntValue:
        map[name] = option.int_value();
        break;
      case v1::Option::kDoubleValue:
        map[name] = option.double_value();
        break;
      case v1::Option::kStringValue:
        PENSTOCK_RETURN_IF_ERROR(CheckText(option.string_value(), entry));
        map[name] = option.string_value();
        break;
      case v1::Option::VALUE_NOT_SET:
        return SpecInvalid(entry, "must have a value", "nothing");
    }
  }
  return map;
}

void SetOptions(const OptionMap& options, google::protobuf::Map<std::string, v1::Option>* map) {
  for (const auto& [name, value] : options) {
    v1::Option& option = (*map)[name];
    if (const bool* flag = std::get_if<bool>(&value)) {
      option.set_bool_value(*flag);
    } else if (const int64_t* whole = std::get_if<int64_t>(&value)) {
      option.set_int_value(*whole);
    } else if (const double* number = std::get_if<double>(&value)) {
      option.set_double_value(*number);
    } else {
      option.set_string_value(std::get<std::string>(value));
    }
  }
}

absl::StatusOr<ModelSpec> Model(const v1::ModelSpec& model) {
  ModelSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(model.name(), "spec.model.name"));
  spec.name = model.name();
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, Options(model.options(), "spec.model.options"));
  if (model.layers_size() > kMaxLayers) {
    return SpecInvalid("spec.model.layers", absl::StrCat("must have at most ", kMaxLayers, " layers"),
                       absl::StrCat(model.layers_size()));
  }
  for (int i = 0; i < model.layers_size(); ++i) {
    const std::string field = absl::StrCat("spec.model.layers[", i, "]");
    const v1::LayerSpec& layer = model.layers(i);
    PENSTOCK_RETURN_IF_ERROR(CheckText(layer.kind(), field + ".kind"));
    PENSTOCK_RETURN_IF_ERROR(CheckText(layer.name(), field + ".name"));
    PENSTOCK_ASSIGN_OR_RETURN(OptionMap options, Options(layer.options(), field + ".options"));
    spec.layers.push_back({layer.kind(), layer.name(), std::move(options)});
  }
  return spec;
}

absl::StatusOr<CheckpointMode> Mode(v1::CheckpointMode mode) {
  switch (mode) {
    case v1::CHECKPOINT_MODE_ALWAYS:
      return CheckpointMode::kAlways;
    case v1::CHECKPOINT_MODE_NEVER:
      return CheckpointMode::kNever;
    case v1::CHECKPOINT_MODE_UNSPECIFIED:
    case v1::CHECKPOINT_MODE_EXCEPT_LAST:
      return CheckpointMode::kExceptLast;
    default:
      return SpecInvalid("spec.schedule.checkpoint", "must be a known mode", absl::StrCat(static_cast<int>(mode)));
  }
}

v1::CheckpointMode ToProto(CheckpointMode mode) {
  switch (mode) {
    case CheckpointMode::kAlways:
      return v1::CHECKPOINT_MODE_ALWAYS;
    case CheckpointMode::kExceptLast:
      return v1::CHECKPOINT_MODE_EXCEPT_LAST;
    case CheckpointMode::kNever:
      return v1::CHECKPOINT_MODE_NEVER;
  }
  return v1::CHECKPOINT_MODE_UNSPECIFIED;
}

absl::StatusOr<OptimizerSpec> Optimizer(const v1::OptimizerSpec& optimizer) {
  OptimizerSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(optimizer.name(), "spec.optimizer.name"));
  if (!optimizer.name().empty()) spec.name = optimizer.name();
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, Options(optimizer.options(), "spec.optimizer.options"));
  if (!std::isfinite(optimizer.clip_norm()) || optimizer.clip_norm() < 0) {
    return SpecInvalid("spec.optimizer.clip_norm", "must be finite and at least 0",
                       absl::StrCat(optimizer.clip_norm()));
  }
  spec.clip_norm = optimizer.clip_norm();
  const v1::LearningRateSpec& rate = optimizer.learning_rate_schedule();
  PENSTOCK_RETURN_IF_ERROR(CheckText(rate.name(), "spec.optimizer.learning_rate_schedule.name"));
  if (!rate.name().empty()) spec.learning_rate_schedule.name = rate.name();
  spec.learning_rate_schedule.warmup_steps = rate.warmup_steps();
  spec.learning_rate_schedule.total_steps = rate.total_steps();
  spec.learning_rate_schedule.final_ratio = rate.final_ratio();
  return spec;
}

v1::TensorSignature ToProto(const TensorSignature& signature) {
  v1::TensorSignature message;
  message.set_name(signature.name);
  message.set_type(static_cast<v1::DataType>(signature.type));
  for (int64_t dimension : signature.shape) message.add_shape(dimension);
  return message;
}

}  // namespace

absl::StatusOr<LossSpec> FromProto(const v1::LossSpec& loss, std::string_view field) {
  LossSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(loss.name(), std::string(field) + ".name"));
  spec.name = loss.name();
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, Options(loss.options(), std::string(field) + ".options"));
  return spec;
}

absl::StatusOr<PipelineSpec> FromProto(const v1::PipelineSpec& message) {
  PipelineSpec spec;
  PENSTOCK_ASSIGN_OR_RETURN(spec.model, Model(message.model()));
  if (message.cut().balance_size() > kMaxStages) {
    return SpecInvalid("spec.cut.balance", absl::StrCat("must have at most ", kMaxStages, " stages"),
                       absl::StrCat(message.cut().balance_size()));
  }
  spec.cut.balance.assign(message.cut().balance().begin(), message.cut().balance().end());
  for (size_t i = 0; i < spec.cut.balance.size(); ++i) {
    if (spec.cut.balance[i] < 1) {
      return SpecInvalid(absl::StrCat("spec.cut.balance[", i, "]"), "must be at least 1",
                         absl::StrCat(spec.cut.balance[i]));
    }
  }
  spec.cut.stages = message.cut().stages();
  if (spec.cut.stages < 0 || spec.cut.stages > kMaxStages) {
    return SpecInvalid("spec.cut.stages", absl::StrCat("must lie in [0, ", kMaxStages, "]"),
                       absl::StrCat(spec.cut.stages));
  }
  if (message.devices_size() > kMaxStages) {
    return SpecInvalid("spec.devices", absl::StrCat("must have at most ", kMaxStages, " entries"),
                       absl::StrCat(message.devices_size()));
  }
  for (int i = 0; i < message.devices_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(message.devices(i), absl::StrCat("spec.devices[", i, "]")));
    spec.devices.push_back(message.devices(i));
  }
  const v1::ScheduleSpec& schedule = message.schedule();
  PENSTOCK_RETURN_IF_ERROR(CheckText(schedule.kind(), "spec.schedule.kind"));
  if (!schedule.kind().empty()) spec.schedule.kind = schedule.kind();
  if (schedule.has_micro_batches()) {
    if (schedule.micro_batches() < 1) {
      return SpecInvalid("spec.schedule.micro_batches", "must be at least 1", absl::StrCat(schedule.micro_batches()));
    }
    spec.schedule.micro_batches = schedule.micro_batches();
  }
  PENSTOCK_ASSIGN_OR_RETURN(spec.schedule.checkpoint, Mode(schedule.checkpoint()));
  PENSTOCK_ASSIGN_OR_RETURN(spec.optimizer, Optimizer(message.optimizer()));
  PENSTOCK_ASSIGN_OR_RETURN(spec.loss, FromProto(message.loss(), "spec.loss"));
  spec.seed = message.seed();
  return spec;
}

v1::PipelineSpec ToProto(const PipelineSpec& spec) {
  v1::PipelineSpec message;
  message.mutable_model()->set_name(spec.model.name);
  SetOptions(spec.model.options, message.mutable_model()->mutable_options());
  for (const LayerSpec& layer : spec.model.layers) {
    v1::LayerSpec* added = message.mutable_model()->add_layers();
    added->set_kind(layer.kind);
    added->set_name(layer.name);
    SetOptions(layer.options, added->mutable_options());
  }
  for (int layers : spec.cut.balance) message.mutable_cut()->add_balance(layers);
  message.mutable_cut()->set_stages(spec.cut.stages);
  for (const std::string& device : spec.devices) message.add_devices(device);
  message.mutable_schedule()->set_kind(spec.schedule.kind);
  message.mutable_schedule()->set_micro_batches(spec.schedule.micro_batches);
  message.mutable_schedule()->set_checkpoint(ToProto(spec.schedule.checkpoint));
  v1::OptimizerSpec* optimizer = message.mutable_optimizer();
  optimizer->set_name(spec.optimizer.name);
  SetOptions(spec.optimizer.options, optimizer->mutable_options());
  optimizer->set_clip_norm(spec.optimizer.clip_norm);
  v1::LearningRateSpec* rate = optimizer->mutable_learning_rate_schedule();
  rate->set_name(spec.optimizer.learning_rate_schedule.name);
  rate->set_warmup_steps(spec.optimizer.learning_rate_schedule.warmup_steps);
  rate->set_total_steps(spec.optimizer.learning_rate_schedule.total_steps);
  rate->set_final_ratio(spec.optimizer.learning_rate_schedule.final_ratio);
  message.mutable_loss()->set_name(spec.loss.name);
  SetOptions(spec.loss.options, message.mutable_loss()->mutable_options());
  message.set_seed(spec.seed);
  return message;
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan message;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    v1::StagePlan* added = message.add_stages();
    added->set_stage(static_cast<int>(i));
    added->set_device(stage.device);
    added->set_first_layer(stage.first_layer);
    for (const std::string& layer : stage.layers) added->add_layers(layer);
    added->set_forward_seconds(stage.forward_seconds);
    added->set_backward_seconds(stage.backward_seconds);
    added->set_recompute_seconds(stage.recompute_seconds);
    added->set_parameter_bytes(stage.parameter_bytes);
    added->set_optimizer_bytes(stage.optimizer_bytes);
    added->set_peak_activation_bytes(stage.peak_activation_bytes);
  }
  message.set_schedule(plan.schedule.kind);
  message.set_micro_batches(plan.schedule.micro_batches);
  message.set_checkpoint(ToProto(plan.schedule.checkpoint));
  message.set_makespan_seconds(plan.makespan_seconds);
  message.set_predicted_bubble(plan.predicted_bubble);
  message.set_ideal_bubble(plan.ideal_bubble);
  return message;
}

v1::ModelSignature ToProto(const ModelSignature& signature) {
  v1::ModelSignature message;
  for (const auto& tensor : signature.inputs) *message.add_inputs() = ToProto(tensor);
  for (const auto& tensor : signature.outputs) *message.add_outputs() = ToProto(tensor);
  for (const auto& tensor : signature.targets) *message.add_targets() = ToProto(tensor);
  return message;
}

}  // namespace penstock
