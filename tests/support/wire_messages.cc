#include "tests/support/wire_messages.h"

#include <variant>

namespace penstock::testing {
namespace {

v1::Option ToMessage(const OptionValue& value) {
  v1::Option option;
  if (const bool* flag = std::get_if<bool>(&value)) option.set_bool_value(*flag);
  if (const int64_t* whole = std::get_if<int64_t>(&value)) option.set_int_value(*whole);
  if (const double* number = std::get_if<double>(&value)) option.set_double_value(*number);
  if (const std::string* text = std::get_if<std::string>(&value)) option.set_string_value(*text);
  return option;
}

}  // namespace

v1::PipelineSpec ToMessage(const PipelineSpec& spec) {
  v1::PipelineSpec message;
  message.mutable_model()->set_name(spec.model.name);
  for (const auto& [name, value] : spec.model.options)
    (*message.mutable_model()->mutable_options())[name] = ToMessage(value);
  message.mutable_cut()->set_stages(spec.cut.stages);
  message.mutable_schedule()->set_kind(spec.schedule.kind);
  message.mutable_schedule()->set_micro_batches(spec.schedule.micro_batches);
  message.mutable_schedule()->set_chunks(spec.schedule.chunks);
  if (spec.schedule.lag.has_value()) message.mutable_schedule()->set_lag(*spec.schedule.lag);
  if (spec.schedule.live_limit.has_value()) message.mutable_schedule()->set_live_limit(*spec.schedule.live_limit);
  message.mutable_schedule()->set_checkpoint(
      spec.schedule.checkpoint == CheckpointMode::kAlways         ? v1::CHECKPOINT_MODE_ALWAYS
      : spec.schedule.checkpoint == CheckpointMode::kNever        ? v1::CHECKPOINT_MODE_NEVER
      : spec.schedule.checkpoint == CheckpointMode::kSkipAdjacent ? v1::CHECKPOINT_MODE_SKIP_ADJACENT
                                                                  : v1::CHECKPOINT_MODE_EXCEPT_LAST);
  v1::OptimizerSpec& optimizer = *message.mutable_optimizer();
  optimizer.set_name(spec.optimizer.name);
  for (const auto& [name, value] : spec.optimizer.options) (*optimizer.mutable_options())[name] = ToMessage(value);
  optimizer.set_clip_norm(spec.optimizer.clip_norm);
  const LearningRateSpec& rate = spec.optimizer.learning_rate_schedule;
  optimizer.mutable_learning_rate_schedule()->set_name(rate.name);
  optimizer.mutable_learning_rate_schedule()->set_warmup_steps(rate.warmup_steps);
  optimizer.mutable_learning_rate_schedule()->set_total_steps(rate.total_steps);
  optimizer.mutable_learning_rate_schedule()->set_final_ratio(rate.final_ratio);
  message.mutable_loss()->set_name(spec.loss.name);
  message.set_seed(spec.seed);
  return message;
}

v1::Input ToMessage(const std::string& name, const at::Tensor& tensor) {
  v1::Input input;
  input.set_name(name);
  v1::TensorHeader& header = *input.mutable_tensor()->mutable_header();
  header.set_type(tensor.scalar_type() == at::kLong ? v1::DATA_TYPE_INT64 : v1::DATA_TYPE_FP32);
  for (int64_t size : tensor.sizes()) header.add_shape(size);
  header.set_byte_size(static_cast<int64_t>(tensor.nbytes()));
  input.mutable_tensor()->set_data(tensor.const_data_ptr(), tensor.nbytes());
  return input;
}

}  // namespace penstock::testing
