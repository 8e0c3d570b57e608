// Streams, events and memory of a GPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "tests/gpu/gpu_fixture.h"

namespace penstock {
namespace {

using testing::GpuTest;
constexpr StreamKind kComputeStream = StreamKind::kCompute;
constexpr StreamKind kCopyIn = StreamKind::kCopyIn;
constexpr StreamKind kCopyOut = StreamKind::kCopyOut;

at::TensorOptions OnGpu() { return at::TensorOptions().device(at::kCUDA); }

class StreamsGpuTest : public GpuTest {};

TEST_F(StreamsGpuTest, EveryGpuHasItsOwnObjectMadeOnce) {
  EXPECT_EQ(&Gpu(), &Gpu());
  EXPECT_NE(&Gpu(), &CpuStreams());
  EXPECT_EQ(Gpu().device(), c10::Device(c10::kCUDA, 0));
}

TEST_F(StreamsGpuTest, WithoutNamesEveryGpuIsADevice) {
  const auto devices = ParseDevices({}, {}, {0});
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(static_cast<int>(devices->size()), FoundCuda().count);
  for (const Device& device : *devices) {
    EXPECT_EQ(device.kind, DeviceKind::kCuda);
    EXPECT_GT(device.memory_limit_bytes, 0);
    EXPECT_LE(device.memory_limit_bytes, StreamsOf(device).Memory().total_bytes);
  }
}

TEST_F(StreamsGpuTest, StreamWaitStream) {
  at::Tensor x;
  Gpu().RunOn(kCopyOut, [&] { x = at::empty({100, 100}, OnGpu()); });
  Delay(Gpu(), kCopyOut);
  Gpu().RunOn(kCopyOut, [&] { x.fill_(1); });
  ASSERT_FALSE(Gpu().Record(kCopyOut)->Ready()) << "the delay is too short for this GPU";
  WaitStream(Gpu(), kComputeStream, Gpu(), kCopyOut);
  Gpu().RunOn(kComputeStream, [&] { EXPECT_EQ(x.sum().item<float>(), 10000); });
}

TEST_F(StreamsGpuTest, ACpuWaitsOnTheHostAndNobodyForACpu) {
  Delay(Gpu(), kComputeStream);
  const EventPtr end = Gpu().Record(kComputeStream);
  WaitStream(Gpu(), kComputeStream, CpuStreams(), kComputeStream);
  EXPECT_FALSE(end->Ready());
  WaitStream(CpuStreams(), kComputeStream, Gpu(), kComputeStream);
  EXPECT_TRUE(end->Ready());
}

// The host is through long before the GPU; both clocks agree on what the GPU has done.
TEST_F(StreamsGpuTest, TimedEventsTellWhatTheDeviceTook) {
  Delay(Gpu(), kComputeStream);  // kernels are loaded
  Gpu().Synchronize();
  const int64_t host_begin = RealClock()->NowNanos();
  const TimedEventPtr begin = Gpu().RecordTimed(kComputeStream);
  Delay(Gpu(), kComputeStream);
  const TimedEventPtr end = Gpu().RecordTimed(kComputeStream);
  const int64_t launched = RealClock()->NowNanos() - host_begin;
  EXPECT_FALSE(end->Ready());
  end->Synchronize();
  const auto took = static_cast<double>(RealClock()->NowNanos() - host_begin);
  EXPECT_TRUE(begin->Ready());
  const auto told = static_cast<double>(end->NanosSince(*begin));
  EXPECT_GT(told, 2 * static_cast<double>(launched));
  EXPECT_NEAR(told / took, 1, 0.1);
}

TEST_F(StreamsGpuTest, OneGpuWaitsForAnother) {
  Need(2);
  if (IsSkipped()) return;
  Delay(Gpu(0), kComputeStream);
  const EventPtr first = Gpu(0).Record(kComputeStream);
  WaitStream(Gpu(1), kComputeStream, Gpu(0), kComputeStream);
  Gpu(1).Synchronize();
  EXPECT_TRUE(first->Ready());
}

// Without it the allocator would give the block to the next tensor while the other stream still uses it.
TEST_F(StreamsGpuTest, StreamRecordStream) {
  at::Tensor x;
  Gpu().RunOn(kCopyIn, [&] { x = at::rand({1}, OnGpu()); });
  Gpu().Synchronize();
  const void* address = x.data_ptr();
  Delay(Gpu(), kComputeStream);
  Gpu().RecordStream(x, kComputeStream);
  x.reset();
  ASSERT_FALSE(Gpu().Record(kComputeStream)->Ready()) << "the delay is too short for this GPU";
  Gpu().RunOn(kCopyIn, [&] { EXPECT_NE(at::rand({1}, OnGpu()).data_ptr(), address); });
}

TEST_F(StreamsGpuTest, WithoutRecordStreamTheBlockIsReusedAtOnce) {  // so the test above can fail
  at::Tensor x;
  Gpu().RunOn(kCopyIn, [&] { x = at::rand({1}, OnGpu()); });
  Gpu().Synchronize();
  const void* address = x.data_ptr();
  Delay(Gpu(), kComputeStream);
  x.reset();
  Gpu().RunOn(kCopyIn, [&] { EXPECT_EQ(at::rand({1}, OnGpu()).data_ptr(), address); });
}

TEST_F(StreamsGpuTest, StreamShiftedView) {
  at::Tensor x;
  Gpu().RunOn(kCopyIn, [&] { x = at::rand({2}, OnGpu()); });
  Gpu().Synchronize();
  const void* address = x.data_ptr();
  at::Tensor shifted = x.slice(0, 1);
  ASSERT_GT(shifted.data_ptr(), address);
  Delay(Gpu(), kComputeStream);
  Gpu().RecordStream(shifted, kComputeStream);
  x.reset();
  shifted.reset();
  ASSERT_FALSE(Gpu().Record(kComputeStream)->Ready()) << "the delay is too short for this GPU";
  Gpu().RunOn(kCopyIn, [&] { EXPECT_NE(at::rand({2}, OnGpu()).data_ptr(), address); });
}

TEST_F(StreamsGpuTest, ComputesInOrderWithWhatOtherThreadsLaunch) {
  at::Tensor x;
  Thread("other", [&] {
    Delay(Gpu(), kComputeStream);
    x = at::ones({100}, OnGpu());  // no RunOn: on the device's default stream
  }).Join();
  Gpu().RunOn(kComputeStream, [&] { EXPECT_EQ(x.sum().item<float>(), 100); });
}

TEST_F(StreamsGpuTest, OtherThreadsReadWhatTheStagesHaveMade) {
  at::Tensor x;
  Gpu().RunOn(kComputeStream, [&] { x = at::zeros({100}, OnGpu()); });
  Delay(Gpu(), kComputeStream);
  Gpu().RunOn(kComputeStream, [&] { x.fill_(1); });
  ASSERT_FALSE(Gpu().Record(kComputeStream)->Ready()) << "the delay is too short for this GPU";
  EXPECT_EQ(x.cpu().sum().item<float>(), 100);  // no RunOn
}

TEST_F(StreamsGpuTest, BackwardStaysOnTheCallingThread) {
  pthread_t ran = 0;
  Gpu().RunOn(kComputeStream, [&] {
    const at::Tensor x = at::ones({3}, OnGpu()).requires_grad_(true);
    const at::Tensor y = x * 2;
    y.register_hook([&](const at::Tensor& gradient) {
      ran = pthread_self();
      return gradient;
    });
    y.sum().backward();
    EXPECT_EQ(x.grad().sum().item<float>(), 6);
  });
  EXPECT_TRUE(pthread_equal(ran, pthread_self()));
}

TEST_F(StreamsGpuTest, CountsMemory) {
  const int64_t bytes = 64 << 20;
  const DeviceMemory before = Gpu().Memory();
  EXPECT_GT(before.total_bytes, 0);
  EXPECT_LE(before.free_bytes, before.total_bytes);
  Gpu().ResetPeak();
  { const at::Tensor x = at::empty({bytes}, OnGpu().dtype(at::kByte)); }
  const DeviceMemory after = Gpu().Memory();
  EXPECT_EQ(after.allocated_bytes, before.allocated_bytes);
  EXPECT_GE(after.peak_allocated_bytes, before.allocated_bytes + bytes);
  Gpu().ResetPeak();
  EXPECT_EQ(Gpu().Memory().peak_allocated_bytes, before.allocated_bytes);
}

}  // namespace
}  // namespace penstock
