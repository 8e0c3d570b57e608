// The same promise as engine_transparency_test, seen by a client: ten steps over gRPC through a real daemon equal the plain
// loop, bit for bit.

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner.h"
#include "tests/support/daemon_process.h"
#include "tests/transparency/transparency_cases.h"

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

v1::PipelineSpec ToMessage(const PipelineSpec& spec) {
  v1::PipelineSpec message;
  message.mutable_model()->set_name(spec.model.name);
  for (const auto& [name, value] : spec.model.options) (*message.mutable_model()->mutable_options())[name] = ToMessage(value);
  message.mutable_cut()->set_stages(spec.cut.stages);
  message.mutable_schedule()->set_kind(spec.schedule.kind);
  message.mutable_schedule()->set_micro_batches(spec.schedule.micro_batches);
  message.mutable_schedule()->set_checkpoint(spec.schedule.checkpoint == CheckpointMode::kAlways ? v1::CHECKPOINT_MODE_ALWAYS
                                             : spec.schedule.checkpoint == CheckpointMode::kNever
                                                 ? v1::CHECKPOINT_MODE_NEVER
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

bool SameBytes(const HostTensor& got, const at::Tensor& want) {
  const at::Tensor plain = want.contiguous();
  return got.bytes() == std::string_view(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
}

TEST(DaemonTransparency, TenStepsOverGrpcEqualThePlainLoop) {
  const char* binary = std::getenv("PENSTOCKD");
  ASSERT_NE(binary, nullptr) << "PENSTOCKD must name the daemon's binary";
  auto daemon = DaemonProcess::Start(binary);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  PipelineClient& client = (*daemon)->client();
  for (const TransparencyCase& one : AllTransparencyCases()) {
    SCOPED_TRACE(Describe(one));
    const PlainRun& plain = PlainRunOf(one.model, one.micro_batches);
    v1::CreatePipelineRequest create;
    create.set_pipeline_id("case");
    *create.mutable_spec() = ToMessage(SpecOf(one));
    auto pipeline = client.CreatePipeline(create);
    ASSERT_TRUE(pipeline.ok()) << pipeline.status();
    ASSERT_EQ(pipeline->plan().stages_size(), one.stages);
    for (int step = 0; step < kTransparencySteps; ++step) {
      const TransparencyBatch batch = BatchOf(one.model, step);
      v1::TrainStepRequest request;
      request.set_pipeline(pipeline->name());
      *request.add_inputs() = ToMessage(batch.inputs[0].name, batch.inputs[0].tensor);
      *request.mutable_target() = ToMessage("target", batch.target);
      request.mutable_reply()->mutable_wait_for()->set_seconds(60);
      auto answer = client.TrainStep(request);
      ASSERT_TRUE(answer.ok()) << answer.status();
      const v1::Outcome& outcome = answer->outcome().handle().outcome();
      ASSERT_EQ(answer->outcome().handle().state(), v1::HANDLE_STATE_READY);
      ASSERT_EQ(outcome.loss(), plain.steps[step].loss) << "step " << step;
      ASSERT_EQ(outcome.gradient_norm(), plain.steps[step].gradient_norm) << "step " << step;
      ASSERT_TRUE(outcome.applied());
    }
    v1::ReadParametersRequest read;
    read.set_pipeline(pipeline->name());
    auto parameters = client.ReadParameters(read);
    ASSERT_TRUE(parameters.ok()) << parameters.status();
    ASSERT_EQ(parameters->step, kTransparencySteps);
    ASSERT_EQ(parameters->tensors.size(), plain.parameters.size());
    for (size_t i = 0; i < plain.parameters.size(); ++i) {
      ASSERT_EQ(parameters->tensors[i].name(), plain.parameters[i].name);
      ASSERT_TRUE(SameBytes(parameters->tensors[i], plain.parameters[i].tensor)) << plain.parameters[i].name;
    }
    v1::InferRequest infer;
    infer.set_pipeline(pipeline->name());
    const TransparencyBatch first = BatchOf(one.model, 0);
    *infer.add_inputs() = ToMessage(first.inputs[0].name, first.inputs[0].tensor);
    infer.mutable_reply()->mutable_wait_for()->set_seconds(60);
    auto inferred = client.Infer(infer);
    ASSERT_TRUE(inferred.ok()) << inferred.status();
    auto tensors = client.ResultTensors(inferred->outputs());
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    ASSERT_TRUE(SameBytes(tensors->at(0), plain.inference));
    v1::DeletePipelineRequest remove;
    remove.set_name(pipeline->name());
    ASSERT_TRUE(client.DeletePipeline(remove).ok());
  }
  EXPECT_EQ((*daemon)->Stop(), 0);
}

}  // namespace
}  // namespace penstock::testing
