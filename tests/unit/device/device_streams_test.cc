#include "engine/device/device_streams.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/device.h"
#include "tests/support/fake_streams.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::FakeStreams;
using ::testing::IsEmpty;
using testing::StreamLog;

constexpr StreamKind kCompute = StreamKind::kCompute;
constexpr StreamKind kCopyOut = StreamKind::kCopyOut;

Device Cpu(int index) {
  Device device;
  device.name = "cpu:" + std::to_string(index);
  device.index = index;
  return device;
}

TEST(DeviceStreams, AllCpusShareOneObjectThatIsMadeOnce) {
  EXPECT_EQ(&StreamsOf(Cpu(0)), &CpuStreams());
  EXPECT_EQ(&StreamsOf(Cpu(1)), &StreamsOf(Cpu(1)));
  EXPECT_EQ(&StreamsOf(Cpu(1)), &StreamsOf(Cpu(0)));
  EXPECT_EQ(TorchDevice(Cpu(3)), c10::Device(c10::kCPU));
}

TEST(DeviceStreams, ACpusOperationsDoNothing) {
  DeviceStreams& cpu = CpuStreams();
  for (StreamKind stream : {kCompute, StreamKind::kCopyIn, kCopyOut}) {
    EXPECT_EQ(cpu.Record(stream), nullptr);
    cpu.Wait(stream, nullptr);
  }
  cpu.Synchronize();
  int runs = 0;
  const pthread_t caller = pthread_self();
  cpu.RunOn(kCompute, [&] {
    ++runs;
    EXPECT_TRUE(pthread_equal(pthread_self(), caller));
  });
  EXPECT_EQ(runs, 1);
}

TEST(DeviceStreams, ACpuKeepsNoTensor) {
  const at::Tensor whole = at::ones({4});
  const at::Tensor view = whole.slice(0, 1);
  const size_t owners = whole.storage().use_count();
  CpuStreams().RecordStream(view, kCopyOut);
  EXPECT_EQ(whole.storage().use_count(), owners);
}

TEST(DeviceStreams, AcceleratorsWaitForEachOtherByAnEvent) {
  StreamLog log;
  FakeStreams a("a", &log), b("b", &log);
  WaitStream(/*source=*/b, kCompute, /*target=*/a, kCopyOut);
  EXPECT_THAT(log.Take(), ElementsAre("b.compute waits a.out@1"));
}

TEST(DeviceStreams, ACpuWaitsForAnAcceleratorOnTheHost) {
  StreamLog log;
  FakeStreams a("a", &log);
  WaitStream(/*source=*/CpuStreams(), kCompute, /*target=*/a, kCompute);
  EXPECT_THAT(log.Take(), ElementsAre("host waits a.compute@1"));
}

TEST(DeviceStreams, NobodyWaitsForACpu) {
  StreamLog log;
  FakeStreams a("a", &log);
  WaitStream(/*source=*/a, kCompute, /*target=*/CpuStreams(), kCompute);
  WaitStream(/*source=*/CpuStreams(), kCompute, /*target=*/CpuStreams(), kCopyOut);
  EXPECT_THAT(log.Take(), IsEmpty());
}

TEST(DeviceStreams, WaitingForAStreamOnTheCpuIsNothing) {
  at::Tensor x;
  CpuStreams().RunOn(kCopyOut, [&] { x = at::ones({100, 100}); });
  WaitStream(CpuStreams(), kCompute, CpuStreams(), kCopyOut);
  CpuStreams().RunOn(kCompute, [&] { EXPECT_EQ(x.sum().item<float>(), 10000); });
}

TEST(DeviceStreams, TellsACpusMemory) {
  const DeviceMemory memory = CpuStreams().Memory();
  EXPECT_EQ(memory.total_bytes, MachineMemoryBytes());
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_EQ(memory.peak_allocated_bytes, -1);  // nobody counts
}

TEST(DeviceStreams, MakesHostTensorsOfTheSameForm) {
  const at::Tensor like = at::full({3, 2}, 7, at::kLong).t();
  const at::Tensor made = CpuStreams().NewHostTensor(like);
  EXPECT_TRUE(made.is_cpu());
  EXPECT_EQ(made.scalar_type(), at::kLong);
  EXPECT_EQ(made.sizes(), like.sizes());
  EXPECT_EQ(made.strides(), like.strides());
}

}  // namespace
}  // namespace penstock
