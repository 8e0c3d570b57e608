#include "engine/device/copy_tensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/support/fake_streams.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeStreams;
using ::testing::IsEmpty;
using testing::StreamLog;

using Tensors = std::vector<at::Tensor>;

// Both halves of a message's way.
Tensors Carry(Tensors tensors, DeviceStreams& from, DeviceStreams& to) {
  auto copies = CopyTensors(std::move(tensors), from, to);
  EXPECT_TRUE(copies.ok()) << copies.status();
  auto arrived = AwaitTensors(*std::move(copies), to);
  EXPECT_TRUE(arrived.ok()) << arrived.status();
  return *std::move(arrived);
}

class CopyTensorsTest : public ::testing::Test {
 protected:
  // Every pair of a sender and a receiver: CPUs and accelerators.
  std::vector<std::pair<DeviceStreams*, DeviceStreams*>> Pairs() {
    DeviceStreams* cpu = &CpuStreams();
    return {{cpu, cpu}, {cpu, &b_}, {&a_, cpu}, {&a_, &b_}};
  }

  StreamLog log_;
  FakeStreams a_{"a", &log_}, b_{"b", &log_};
};

TEST_F(CopyTensorsTest, FourPairsGiveValuesForwardAndGradientsBackward) {
  for (const auto& [from, to] : Pairs()) {
    const Tensors forward = Carry({at::ones({100})}, *from, *to);
    const at::Tensor leaf = forward[0].detach().requires_grad_();
    EXPECT_EQ(leaf.sum().item<float>(), 100);
    leaf.norm().backward();
    const Tensors backward = Carry({leaf.grad()}, *to, *from);
    EXPECT_NEAR(backward[0].sum().item<float>(), 10.0, 1e-5);
  }
}

TEST_F(CopyTensorsTest, HandsOverBetweenCpusAndWithinADeviceWithoutACopy) {
  const at::Tensor tensor = at::ones({3});
  EXPECT_TRUE(Carry({tensor}, CpuStreams(), CpuStreams())[0].is_same(tensor));
  EXPECT_TRUE(Carry({tensor}, a_, a_)[0].is_same(tensor));
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(CopyTensorsTest, CopiesOnTheCopyStreamsAfterTheComputationAndKeepsTheSource) {
  const at::Tensor tensor = at::ones({3});
  auto copies = CopyTensors({tensor}, a_, b_);
  ASSERT_TRUE(copies.ok());
  EXPECT_THAT(log_.Take(), ElementsAre("a.out waits a.compute@1", "a.out{", "b.in{",
                                       "a.out keeps " + FakeStreams::AddressOf(tensor), "b.in}", "a.out}"));
  ASSERT_NE(copies->ready, nullptr);
  EXPECT_FALSE(copies->ready->Ready());  // nobody has blocked
  EXPECT_FALSE(copies->tensors[0].is_same(tensor));
  log_.Take();
  const at::Tensor copy = copies->tensors[0];
  ASSERT_TRUE(AwaitTensors(*std::move(copies), b_).ok());
  EXPECT_THAT(log_.Take(), ElementsAre("b.compute waits b.in@1", "b.compute keeps " + FakeStreams::AddressOf(copy)));
}

TEST_F(CopyTensorsTest, ACpuReceivesThroughStagingAndWaitsItself) {
  const at::Tensor tensor = at::ones({3});
  Carry({tensor}, a_, CpuStreams());
  EXPECT_THAT(log_.Take(),
              ElementsAre("a.out waits a.compute@1", "a.out{", "a stages",
                          "a.out keeps " + FakeStreams::AddressOf(tensor), "a.out}", "host waits a.out@2"));
}

TEST_F(CopyTensorsTest, ACpuSendsThroughStagingAndNobodyWaitsForIt) {
  const Tensors arrived = Carry({at::ones({3})}, CpuStreams(), b_);
  EXPECT_THAT(log_.Take(), ElementsAre("b.in{", "b stages", "b.in}", "b.compute waits b.in@1",
                                       "b.compute keeps " + FakeStreams::AddressOf(arrived[0])));
}

TEST_F(CopyTensorsTest, AMissingGradientStaysMissing) {
  for (const auto& [from, to] : Pairs()) {
    // As a stage's backward leaves them: no gradient for the first and last input.
    const Tensors arrived = Carry({at::Tensor(), at::ones({2}), at::Tensor()}, *to, *from);
    ASSERT_EQ(arrived.size(), 3u);
    EXPECT_FALSE(arrived[0].defined());
    EXPECT_TRUE(at::equal(arrived[1], at::ones({2})));
    EXPECT_FALSE(arrived[2].defined());
  }
}

TEST_F(CopyTensorsTest, OneWaitIsForAllTensors) {
  Tensors tensors = {at::ones({2}), at::ones({3}), at::ones({4})};
  auto copies = CopyTensors(tensors, a_, b_);
  ASSERT_TRUE(copies.ok());
  log_.Take();
  const auto arrived = AwaitTensors(*std::move(copies), b_);
  ASSERT_TRUE(arrived.ok());
  // The event stands behind the last copy, and every tensor is kept for the stream that waited.
  EXPECT_THAT(log_.Take(),
              ElementsAre("b.compute waits b.in@1", "b.compute keeps " + FakeStreams::AddressOf((*arrived)[0]),
                          "b.compute keeps " + FakeStreams::AddressOf((*arrived)[1]),
                          "b.compute keeps " + FakeStreams::AddressOf((*arrived)[2])));
}

TEST_F(CopyTensorsTest, IntegersAndBooleansPassAndNoGraphGoesAlong) {
  for (const auto& [from, to] : Pairs()) {
    if (from == to) continue;  // handed over as they are
    const at::Tensor numbers = at::arange(5);
    const at::Tensor flags = numbers.gt(2);
    const at::Tensor computed = at::ones({2}).requires_grad_().mul(2);
    const Tensors arrived = Carry({numbers, flags, computed}, *from, *to);
    EXPECT_TRUE(at::equal(arrived[0], numbers));
    EXPECT_EQ(arrived[0].scalar_type(), at::kLong);
    EXPECT_TRUE(at::equal(arrived[1], flags));
    EXPECT_EQ(arrived[1].scalar_type(), at::kBool);
    for (const at::Tensor& tensor : arrived) EXPECT_FALSE(tensor.requires_grad());
  }
}

TEST_F(CopyTensorsTest, KeepsTheWholeStorageOfAView) {
  const at::Tensor whole = at::arange(6);
  const at::Tensor view = whole.slice(0, 2);
  const Tensors arrived = Carry({view}, a_, b_);
  EXPECT_TRUE(at::equal(arrived[0], view));
  // The address is the storage's, not the view's.
  const std::string kept = "a.out keeps " + FakeStreams::AddressOf(whole);
  EXPECT_THAT(log_.Take(), Contains(kept).Times(1));
}

TEST_F(CopyTensorsTest, KeepsTheOrderOfDimensions) {
  const at::Tensor turned = at::arange(6).reshape({2, 3}).t();
  for (const auto& [from, to] : Pairs()) {
    const at::Tensor arrived = Carry({turned}, *from, *to)[0];
    EXPECT_TRUE(at::equal(arrived, turned));
    EXPECT_EQ(arrived.strides(), turned.strides());
  }
}

TEST_F(CopyTensorsTest, TellsAFullDevice) {
  b_.Fill();
  const auto copies = CopyTensors({at::ones({3})}, CpuStreams(), b_);
  EXPECT_EQ(copies.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(copies.status()), "DEVICE_MEMORY");
}

TEST(ToDevice, IsTheTensorItselfOnACpu) {
  Device cpu;
  cpu.name = "cpu:1";
  cpu.index = 1;
  const at::Tensor tensor = at::ones({2}).requires_grad_();
  EXPECT_TRUE(ToDevice(tensor, cpu).is_same(tensor));
  EXPECT_TRUE(ToHost(tensor).is_same(tensor));
  EXPECT_FALSE(ToDevice(at::Tensor(), cpu).defined());
  EXPECT_FALSE(ToHost(at::Tensor()).defined());
}

}  // namespace
}  // namespace penstock
