#include "engine/plan/layer_probe.h"

#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/device/torch_status.h"
#include "tests/support/fake_streams.h"

namespace penstock {
namespace {

TEST(LayerProbe, AGradientFromBeforeIsRefused) {
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

// A device whose memory grows by what other threads do, and that counts how often it was waited for.
class BusyStreams : public testing::FakeStreams {
 public:
  explicit BusyStreams(testing::StreamLog* log) : FakeStreams("cuda0", log) {}
  c10::Device device() const override { return {c10::kPrivateUse1, 1}; }
  DeviceMemory Memory() override { return {.allocated_bytes = 1000 + 4096 * asked_++}; }

 private:
  int asked_ = 0;
};

// Keeps 512 bytes of that device, as its allocator reports it, and gives as many back.
class KeepsOnDevice : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext& /*context*/) override {
    const auto report = [this](int64_t bytes, c10::Device device) {
      c10::reportMemoryUsageToProfiler(this, bytes, 1 << 20, 1 << 20, device);
    };
    report(2048, {c10::kPrivateUse1, 1});
    report(-1536, {c10::kPrivateUse1, 1});
    report(100, {c10::kPrivateUse1, 0});
    Thread("other", [&] { report(100, {c10::kPrivateUse1, 1}); });  // of another pipeline
    kept_ = at::ones({64});                                         // on the host
    return inputs;
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }

 private:
  at::Tensor kept_;
};

// Of what this thread does.
TEST(LayerProbe, AnAcceleratorsAllocatorSaysWhatIsKept) {
  NamedLayer layer;
  layer.layer = std::make_unique<KeepsOnDevice>();
  testing::StreamLog log;
  BusyStreams streams(&log);
  LayerProfile profile;
  const absl::Status status = RunTorch([&] {
    Arrival arrival{.values = Batch(at::ones({4, 3}).requires_grad_(true)), .skips = {}};
    profile = MeasureLayer(layer, arrival, streams, {}, {.rows = 4, .repeats = 2}, RealClock());
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(profile.stash_bytes, 512);
  // Before and after each forward, and each backward: kernels run on when the host is done.
  EXPECT_EQ(log.Take(), std::vector<std::string>(3 * 4, "host waits cuda0"));
}

TEST(LayerProbe, TheHalvesOfABackwardAreMeasuredByThemselves) {
  auto layers =
      BuildLayers({{.kind = "linear", .name = "a", .options = {{"in", int64_t{64}}, {"out", int64_t{64}}}}}, 0);
  ASSERT_TRUE(layers.ok()) << layers.status();
  const auto measure = [&](bool halves, bool learns) {
    LayerProfile profile;
    for (const NamedTensor& parameter : (*layers)[0].layer->parameters()) parameter.tensor.mutable_grad().reset();
    const absl::Status status = RunTorch([&] {
      Arrival arrival{.values = Batch(at::ones({64, 64}).requires_grad_(learns)), .skips = {}};
      const ProfileOptions options = {.rows = 64, .repeats = 2, .halves = halves};
      profile = MeasureLayer((*layers)[0], arrival, CpuStreams(), {}, options, RealClock());
      // Three runs with their backward in one, two with it in halves: each adds 64 to a gradient of the bias.
      EXPECT_EQ((*layers)[0].layer->parameters()[1].tensor.grad()[0].item<float>(), (halves ? 5 : 3) * 64);
    });
    EXPECT_TRUE(status.ok()) << status;
    return profile;
  };
  const LayerProfile whole = measure(false, true);
  EXPECT_GT(whole.backward_seconds, 0);
  EXPECT_EQ(whole.input_gradient_seconds, 0);
  EXPECT_EQ(whole.weight_gradient_seconds, 0);
  const LayerProfile halves = measure(true, true);
  EXPECT_GT(halves.backward_seconds, 0);
  EXPECT_GT(halves.input_gradient_seconds, 0);
  EXPECT_GT(halves.weight_gradient_seconds, 0);
  const LayerProfile first = measure(true, false);  // nobody needs the gradient of the model's input
  EXPECT_GT(first.weight_gradient_seconds, 0);
}

}  // namespace
}  // namespace penstock
