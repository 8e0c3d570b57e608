// The same promise as engine_transparency_test, seen by a client: ten steps over gRPC through a real daemon equal the
// plain loop, bit for bit.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/daemon_process.h"
#include "tests/support/wire_messages.h"
#include "tests/transparency/transparency_cases.h"

namespace penstock::testing {
namespace {

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
