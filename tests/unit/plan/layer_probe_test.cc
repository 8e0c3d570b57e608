#include "engine/plan/layer_probe.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

TEST(LayerProbe, BAL_4_AGradientFromBeforeIsRefused) {
  auto layers = BuildLayers({{.kind = "linear", .name = "a", .options = {{"in", int64_t{3}}, {"out", int64_t{2}}}}}, 0);
  ASSERT_TRUE(layers.ok()) << layers.status();
  const NamedLayer& layer = (*layers)[0];
  const auto measure = [&] {
    return RunTorch([&] {
      Arrival arrival{.values = Batch(at::ones({4, 3})), .skips = {}};
      MeasureLayer(layer, arrival, CpuStreams(), {}, {.rows = 4, .repeats = 1}, RealClock());
    });
  };
  EXPECT_TRUE(measure().ok());
  EXPECT_TRUE(layer.layer->parameters()[0].tensor.grad().defined());  // the measurement's own
  const at::Tensor before = layer.layer->parameters()[0].tensor.grad().clone();
  const absl::Status status = measure();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status)["field"], "a.weight");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("some parameter already has gradient: a.weight"));
  EXPECT_TRUE(layer.layer->parameters()[0].tensor.grad().equal(before));
}

}  // namespace
}  // namespace penstock
