// Models whose requests can't be batched, told by their signature alone: for a plan as for a pipeline.

#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/layer_registry.h"

namespace penstock {
namespace {

// Takes so many rows; less than 0: any number.
class RowsLayer : public Layer {
 public:
  explicit RowsLayer(int64_t rows) : rows_(rows) {}
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {at::relu(inputs.TensorAt(0))}; }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", DataType::kFp32, {rows_, 4}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", DataType::kFp32, {rows_, 4}}}; }

 private:
  const int64_t rows_;
};

template <int64_t rows>
absl::StatusOr<std::unique_ptr<Layer>> Make(const LayerRequest&) {
  return std::make_unique<RowsLayer>(rows);
}

class BatchedRowsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(RegisterLayerKind("test_open", &Make<-1>).ok());
    ASSERT_TRUE(RegisterLayerKind("test_three", &Make<3>).ok());
  }
  static PipelineSpec Spec(const std::string& kind) {
    PipelineSpec spec;
    spec.model.layers.push_back({.kind = kind, .name = "first", .options = {}});
    spec.cut.balance = {1};
    spec.schedule = {"gpipe", 1, CheckpointMode::kNever};
    spec.loss.name = "mean_squared_error";
    spec.batching = DynamicBatchingSpec{};
    return spec;
  }
  // Of a plan, a search and a pipeline.
  std::vector<absl::Status> Answers(const PipelineSpec& spec) {
    Pipeline::Options options;
    options.devices = &pool_;
    options.profile = {.rows = 3, .repeats = 1};
    return {Pipeline::MakePlan(spec, options).status(), Pipeline::SearchPlans(spec, options).status(),
            Pipeline::Create(spec, options).status()};
  }

  DevicePool pool_{{{"cpu:0", {0}, 0}}, DevicePool::Mode::kSerial};
};

TEST_F(BatchedRowsTest, AFixedNumberOfRowsIsRefused) {
  for (const absl::Status& status : Answers(Spec("test_three"))) {
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
    EXPECT_EQ(ValuesOf(status)["field"], "spec.dynamic_batching");
    EXPECT_EQ(status.message(), "spec.dynamic_batching: input input must have an open number of rows, got [3, 4]");
  }
}

TEST_F(BatchedRowsTest, AnOpenNumberIsNotAndAFixedOneWithoutBatchingIsNot) {
  for (const absl::Status& status : Answers(Spec("test_open"))) EXPECT_TRUE(status.ok()) << status;
  PipelineSpec fixed = Spec("test_three");
  fixed.batching.reset();
  for (const absl::Status& status : Answers(fixed)) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace penstock
