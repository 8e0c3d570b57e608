// Copies between devices while the sender is still at work: a receiver that did not wait would see zeros.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "tests/gpu/gpu_fixture.h"

namespace penstock {
namespace {

using testing::GpuTest;
using Tensors = std::vector<at::Tensor>;
constexpr StreamKind kCompute = StreamKind::kCompute;

Tensors Carry(Tensors tensors, DeviceStreams& from, DeviceStreams& to) {
  auto copies = CopyTensors(std::move(tensors), from, to);
  EXPECT_TRUE(copies.ok()) << copies.status();
  auto arrived = AwaitTensors(*std::move(copies), to);
  EXPECT_TRUE(arrived.ok()) << arrived.status();
  return *std::move(arrived);
}

at::TensorOptions On(DeviceStreams& device) { return at::TensorOptions().device(device.device()); }

class CopyGpuTest : public GpuTest {};

TEST_F(CopyGpuTest, FourPairsGiveValuesForwardAndGradientsBackward) {
  for (const auto& [from, to] : Pairs()) {
    at::Tensor x, leaf, gradient;
    from->RunOn(kCompute, [&, from = from] {
      Delay(*from, kCompute);
      x = at::ones({100}, On(*from));
    });
    leaf = Carry({x}, *from, *to)[0].detach().requires_grad_();
    EXPECT_EQ(leaf.device(), to->device());
    to->RunOn(kCompute, [&, to = to] {
      EXPECT_EQ(leaf.sum().item<float>(), 100);
      Delay(*to, kCompute);
      leaf.norm().backward();
    });
    gradient = Carry({leaf.grad()}, *to, *from)[0];
    EXPECT_EQ(gradient.device(), from->device());
    from->RunOn(kCompute, [&] { EXPECT_NEAR(gradient.sum().item<float>(), 10.0, 1e-5); });
  }
}

TEST_F(CopyGpuTest, CopyDoesNotBlockTheSender) {
  at::Tensor x;
  Gpu().RunOn(kCompute, [&] { x = at::empty({1024}, On(Gpu())); });
  Carry({x}, Gpu(), CpuStreams());  // makes streams and staging
  Delay(Gpu(), kCompute);
  const auto copies = CopyTensors({x}, Gpu(), CpuStreams());
  ASSERT_TRUE(copies.ok());
  EXPECT_FALSE(copies->ready->Ready());
  EXPECT_TRUE(copies->tensors[0].is_pinned());
  copies->ready->Synchronize();
  EXPECT_TRUE(copies->ready->Ready());
}

TEST_F(CopyGpuTest, AMissingGradientStaysMissing) {
  for (const auto& [from, to] : Pairs()) {
    const Tensors arrived = Carry({at::Tensor(), at::ones({2}, On(*from))}, *from, *to);
    EXPECT_FALSE(arrived[0].defined());
    EXPECT_EQ(arrived[1].sum().item<float>(), 2);
  }
}

// Two inputs of 1024x3x32x32 in 32 micro-batches through a layer (a, 2b, 3b) and one that adds the three, whose
// gradients of b come late. With one wait for all tensors the norm of b's gradient is 5 times that of the norm's own
// gradient, 1.
TEST_F(CopyGpuTest, BugsTupleWait) {
  constexpr int kChunks = 32;
  for (const auto& [from, to] : Pairs()) {
    Tensors a, b, leaves, sums;
    from->RunOn(kCompute, [&, from = from] {
      a = at::rand({1024, 3, 32, 32}, On(*from)).chunk(kChunks);
      b = at::rand({1024, 3, 32, 32}, On(*from)).chunk(kChunks);
    });
    for (int i = 0; i < kChunks; ++i) {
      Tensors outputs;
      from->RunOn(kCompute, [&] { outputs = {a[i] * 1, b[i] * 2, b[i] * 3}; });
      for (const at::Tensor& tensor : Carry(outputs, *from, *to)) leaves.push_back(tensor.detach().requires_grad_());
      const size_t last = leaves.size();
      to->RunOn(kCompute, [&] { sums.push_back(leaves[last - 3] + leaves[last - 2] + leaves[last - 1]); });
    }
    double squares = 0;
    to->RunOn(kCompute, [&] {
      for (const at::Tensor& sum : sums) squares += sum.detach().square().sum().item<double>();
    });
    double norm_squares = 0;
    for (int i = 0; i < kChunks; ++i) {
      Tensors gradients;
      to->RunOn(kCompute, [&, to = to] {
        if (i % 8 == 0) Delay(*to, kCompute);
        sums[i].backward(sums[i].detach() / std::sqrt(squares));
        for (int k = 0; k < 3; ++k) gradients.push_back(leaves[3 * i + k].grad());
      });
      gradients = Carry(std::move(gradients), *to, *from);
      from->RunOn(kCompute,
                  [&] { norm_squares += (gradients[1] * 2 + gradients[2] * 3).square().sum().item<double>(); });
    }
    EXPECT_NEAR(std::sqrt(norm_squares), 5.0, 1e-3);
  }
}

TEST_F(CopyGpuTest, IntegersPassBothWays) {
  const at::Tensor numbers = at::full({1000}, 7, at::kLong);
  const Tensors there = Carry({numbers}, CpuStreams(), Gpu());
  EXPECT_EQ(there[0].scalar_type(), at::kLong);
  const Tensors back = Carry(there, Gpu(), CpuStreams());
  EXPECT_TRUE(back[0].equal(numbers));
}

// The sender releases its tensor at once and computes on: its memory must not be reused before the copy has read it.
TEST_F(CopyGpuTest, TheSenderMayReleaseAtOnce) {
  for (const auto& [from, to] : Pairs()) {
    std::vector<TensorsInFlight> way;
    for (int i = 0; i < 50; ++i) {
      at::Tensor x;
      from->RunOn(kCompute, [&, from = from] { x = at::full({1 << 20}, i, On(*from)); });
      if (i == 0) Delay(*from, StreamKind::kCopyOut);
      auto copies = CopyTensors({std::move(x)}, *from, *to);
      ASSERT_TRUE(copies.ok()) << copies.status();
      way.push_back(*std::move(copies));
      from->RunOn(kCompute, [&, from = from] { at::full({1 << 20}, -1, On(*from)); });
    }
    for (int i = 0; i < 50; ++i) {
      const auto arrived = AwaitTensors(std::move(way[i]), *to);
      ASSERT_TRUE(arrived.ok()) << arrived.status();
      to->RunOn(kCompute, [&] { EXPECT_TRUE((*arrived)[0].eq(i).all().item<bool>()) << i; });
    }
  }
}

TEST_F(CopyGpuTest, PlacesAndBringsBack) {
  const at::Tensor tensor = at::rand({3, 4});
  const at::Tensor placed = ToDevice(tensor, Cuda(0));
  EXPECT_EQ(placed.device(), TorchDevice(Cuda(0)));
  EXPECT_TRUE(ToDevice(placed, Cuda(0)).is_same(placed));
  EXPECT_TRUE(ToHost(placed).equal(tensor));
}

TEST_F(CopyGpuTest, TellsAFullDevice) {
  const int64_t beyond = Gpu().Memory().total_bytes;  // floats, so four times the memory
  const absl::Status full = RunTorch([&] { at::empty({beyond}, On(Gpu())); });
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
}

}  // namespace
}  // namespace penstock
