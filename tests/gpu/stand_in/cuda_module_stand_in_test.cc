// The CUDA module itself, with LibTorch's own streams, events and allocators, on a runtime without a GPU (cuda_runtime.cc):
// what it asks of CUDA, in which order, on which stream. Kernels don't run, copies do.

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/autograd/seeds.h"
#include "engine/base/ids.h"
#include "engine/base/thread.h"
#include "engine/device/accelerators.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/cuda_module.h"
#include "engine/device/device.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
constexpr StreamKind kCompute = StreamKind::kCompute;
constexpr StreamKind kCopyIn = StreamKind::kCopyIn;
constexpr StreamKind kCopyOut = StreamKind::kCopyOut;
constexpr StreamKind kAll[] = {kCompute, kCopyIn, kCopyOut};

// A function of the runtime that stands in.
template <typename Function>
Function* StandIn(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

Device Cuda(int index) {
  Device device;
  device.name = "cuda:" + std::to_string(index);
  device.kind = DeviceKind::kCuda;
  device.index = index;
  return device;
}
DeviceStreams& Gpu(int index = 0) { return StreamsOf(Cuda(index)); }
at::TensorOptions OnGpu(int index = 0) {
  return at::TensorOptions().device(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

// The stream of CUDA's behind one of ours: what LibTorch gives it inside.
void* Native(DeviceStreams& device, StreamKind kind) {
  void* native = nullptr;
  device.RunOn(kind, [&] {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    native = reinterpret_cast<void*>(guard.getStreamNativeHandle(guard.getStream(device.device())));
  });
  return native;
}

// Keeps what a stream is given from now on from being done.
class Held {
 public:
  Held(DeviceStreams& device, StreamKind kind) : gate_(StandIn<int(void*)>("StandInHold")(Native(device, kind))) {}
  ~Held() { Release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void Release() { StandIn<void(int)>("StandInRelease")(gate_); }

 private:
  const int gate_;
};

int64_t OnLegacyStream() { return StandIn<int64_t()>("StandInLegacyWork")(); }
int64_t HostWaits() { return StandIn<int64_t()>("StandInHostWaits")(); }

class CudaModuleStandIn : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(dlsym(RTLD_DEFAULT, "StandInHold"), nullptr) << "run it by module_lines.py";
    OpenAccelerators({"cuda"}, {.driver = "libcuda.so.1", .module = CUDA_MODULE});
    ASSERT_EQ(FoundCuda().count, 2) << FoundCuda().why_none;
  }
};

TEST_F(CudaModuleStandIn, EachDeviceHasStreamsOfItsOwn) {
  EXPECT_EQ(Gpu(1).device(), c10::Device(c10::kCUDA, 1));
  std::set<void*> natives;
  for (int device = 0; device < 2; ++device) {
    for (const StreamKind kind : kAll) {
      natives.insert(Native(Gpu(device), kind));
      EXPECT_EQ(StandIn<int(void*)>("StandInDeviceOf")(Native(Gpu(device), kind)), device);
    }
  }
  EXPECT_EQ(natives.size(), 6u);
  EXPECT_EQ(natives.count(nullptr), 0u) << "the legacy default stream, for which all others wait";
  EXPECT_EQ(Native(Gpu(0), kCompute), Native(Gpu(0), kCompute));
}

// Else another thread's work, which names no stream, would not be in order with the stages'; copies overlap with both.
TEST_F(CudaModuleStandIn, OnlyTheComputeStreamIsInOrderWithTheDefaultStream) {
  const auto blocking = StandIn<bool(void*)>("StandInBlocking");
  EXPECT_TRUE(blocking(Native(Gpu(), kCompute)));
  EXPECT_FALSE(blocking(Native(Gpu(), kCopyIn)));
  EXPECT_FALSE(blocking(Native(Gpu(), kCopyOut)));
}

TEST_F(CudaModuleStandIn, NothingIsGivenToTheLegacyDefaultStream) {
  const int64_t before = OnLegacyStream();
  at::Tensor there;
  Gpu().RunOn(kCompute, [&] {
    const at::Tensor x = at::zeros({100}, OnGpu());
    there = x.clone();
  });
  const auto back = CopyTensors({there}, Gpu(), CpuStreams());
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_TRUE(AwaitTensors(*back, CpuStreams()).ok());
  Gpu().RecordTimed(kCompute);
  Gpu().RecordStream(there, kCopyIn);
  EXPECT_EQ(OnLegacyStream(), before);
  at::zeros({100}, OnGpu()).clone();  // so that the count can grow
  EXPECT_GT(OnLegacyStream(), before);
}

TEST_F(CudaModuleStandIn, AnEventIsReadyWhenItsStreamHasPassedIt) {
  const EventPtr before = Gpu().Record(kCompute);
  Held held(Gpu(), kCompute);
  const EventPtr behind = Gpu().Record(kCompute);
  const EventPtr beside = Gpu().Record(kCopyIn);
  EXPECT_TRUE(before->Ready());
  EXPECT_FALSE(behind->Ready());
  EXPECT_TRUE(beside->Ready());
  behind->Synchronize();
  EXPECT_TRUE(behind->Ready());
}

TEST_F(CudaModuleStandIn, AStreamWaitsForAnEventAndTheHostDoesNot) {
  Held held(Gpu(0), kCompute);
  const int64_t waits = HostWaits();
  Gpu(1).Wait(kCopyIn, Gpu(0).Record(kCompute));
  Gpu(1).Wait(kCopyIn, nullptr);
  const EventPtr behind = Gpu(1).Record(kCopyIn);
  EXPECT_EQ(HostWaits(), waits);
  EXPECT_FALSE(behind->Ready());
  held.Release();
  EXPECT_TRUE(behind->Ready());
}

TEST_F(CudaModuleStandIn, ForAnEventOfAnotherKindTheHostWaits) {
  struct Stranger : DeviceEvent {
    bool Ready() const override { return waited; }
    void Synchronize() const override { waited = true; }
    mutable bool waited = false;
  };
  const auto stranger = std::make_shared<const Stranger>();
  Gpu().Wait(kCompute, stranger);
  EXPECT_TRUE(stranger->waited);
}

TEST_F(CudaModuleStandIn, TimedEventsTellTheDevicesTime) {
  const TimedEventPtr begin = Gpu().RecordTimed(kCompute);
  Gpu().Record(kCompute);
  const TimedEventPtr end = Gpu().RecordTimed(kCompute);
  EXPECT_EQ(end->NanosSince(*begin), 2'000'000);  // a millisecond from each event to the next
}

TEST_F(CudaModuleStandIn, RunOnMakesTheDeviceCurrentAndKeepsBackwardHere) {
  pthread_t ran = 0;
  Gpu(1).RunOn(kCompute, [&] {
    EXPECT_EQ(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index(), 1);
    const at::Tensor x = at::empty({3}, OnGpu(1)).requires_grad_(true);
    const at::Tensor y = x.view({3, 1});
    y.register_hook([&](const at::Tensor& gradient) {
      ran = pthread_self();
      return gradient;
    });
    y.backward(at::empty({3, 1}, OnGpu(1)));
    EXPECT_TRUE(x.grad().defined());
  });
  EXPECT_TRUE(pthread_equal(ran, pthread_self()));
  EXPECT_EQ(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index(), 0);
}

// LibTorch's allocator gives a freed block to the next who asks on the stream that it was allocated on.
TEST_F(CudaModuleStandIn, ARecordedStreamKeepsTheBlock) {
  for (const bool recorded : {false, true}) {
    at::Tensor x, next;
    Gpu().RunOn(kCopyIn, [&] { x = at::empty({1000}, OnGpu()); });
    const void* address = x.data_ptr();
    Held held(Gpu(), kCompute);
    if (recorded) Gpu().RecordStream(x.slice(0, 1), kCompute);
    x.reset();
    Gpu().RunOn(kCopyIn, [&] { next = at::empty({1000}, OnGpu()); });
    EXPECT_EQ(next.data_ptr() == address, !recorded);
    next.reset();
  }
  Gpu().RecordStream(at::empty({3}), kCompute);  // the host's memory is nobody's business
}

TEST_F(CudaModuleStandIn, TheHostsTensorsArePinned) {
  const at::Tensor like = at::empty({2, 3}, at::kLong).t();
  const at::Tensor made = Gpu().NewHostTensor(like);
  EXPECT_TRUE(made.is_pinned());
  EXPECT_EQ(made.scalar_type(), at::kLong);
  EXPECT_EQ(made.strides(), like.strides());
}

TEST_F(CudaModuleStandIn, CopiesGoThroughPinnedMemoryWithoutTheHostWaiting) {
  const at::Tensor numbers = at::arange(1000, at::kLong);
  Native(Gpu(), kCopyIn);  // makes the streams
  const int64_t waits = HostWaits();
  const auto there = CopyTensors({numbers, at::Tensor()}, CpuStreams(), Gpu());
  ASSERT_TRUE(there.ok()) << there.status();
  const auto arrived = AwaitTensors(*there, Gpu());
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  const auto back = CopyTensors({(*arrived)[0]}, Gpu(), CpuStreams());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(HostWaits(), waits);
  EXPECT_EQ((*arrived)[0].device(), Gpu().device());
  EXPECT_FALSE((*arrived)[1].defined());
  EXPECT_TRUE(back->tensors[0].is_pinned());
  const auto read = AwaitTensors(*back, CpuStreams());
  EXPECT_GT(HostWaits(), waits);
  EXPECT_TRUE((*read)[0].equal(numbers));
}

// The next inputs are on their way while the device computes with those before; it waits for them, and the host for neither.
TEST_F(CudaModuleStandIn, AnInputIsCopiedBesideWhatTheDeviceComputes) {
  Held held(Gpu(), kCompute);
  const int64_t waits = HostWaits();
  for (int i = 0; i < 2; ++i) {
    const auto copy = CopyTensors({at::ones({4096})}, CpuStreams(), Gpu());
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_TRUE(copy->ready->Ready());
    ASSERT_TRUE(AwaitTensors(*copy, Gpu()).ok());
  }
  Held behind(Gpu(), kCopyIn);
  const auto late = CopyTensors({at::ones({4096})}, CpuStreams(), Gpu());
  ASSERT_TRUE(AwaitTensors(*late, Gpu()).ok());
  held.Release();
  EXPECT_FALSE(Gpu().Record(kCompute)->Ready()) << "it waits for its inputs";
  EXPECT_EQ(HostWaits(), waits);
}

// Two inputs of one size: the second is not written over the first while that is on its way, and what was read is used again.
TEST_F(CudaModuleStandIn, PinnedMemoryIsUsedAgainWhenItsCopyIsDone) {
  std::vector<const void*> places;
  const auto send = [&] {
    Gpu().RunOn(kCopyIn, [&] {
      const at::Tensor host = Gpu().NewHostTensor(at::empty({4096}));
      places.push_back(host.data_ptr());
      at::empty({4096}, OnGpu()).copy_(host, /*non_blocking=*/true);
    });
  };
  Held held(Gpu(), kCopyIn);
  send();
  send();
  EXPECT_NE(places[0], places[1]);
  held.Release();
  send();
  EXPECT_TRUE(places[2] == places[0] || places[2] == places[1]);
}

// By a generator of the device, whose state no host has to look at.
TEST_F(CudaModuleStandIn, MasksAreDrawnOnTheDeviceByTheKeyOfThePass) {
  const auto draw = [](int micro_batch) {
    return KeyedRandom(7, StepId(3), MicroBatchIndex(micro_batch), LayerIndex(2)).NextFor(Gpu(1).device());
  };
  const Draw one = draw(0);
  EXPECT_EQ(one.device, Gpu(1).device());
  EXPECT_EQ(one.generator.device(), Gpu(1).device());
  EXPECT_EQ(one.generator.current_seed(), draw(0).generator.current_seed());
  EXPECT_NE(one.generator.current_seed(), draw(1).generator.current_seed());
  Gpu(1).RunOn(kCompute, [&] {
    const int64_t waits = HostWaits();
    at::empty({100}, OnGpu(1)).bernoulli_(0.5, one.generator);
    EXPECT_EQ(HostWaits(), waits);
  });
}

TEST_F(CudaModuleStandIn, MemoryIsWhatTheAllocatorCounts) {
  const int64_t bytes = 64 << 20;
  const DeviceMemory before = Gpu().Memory();
  EXPECT_EQ(before.total_bytes, 1 << 30);
  Gpu().ResetPeak();
  {
    const at::Tensor x = at::empty({bytes}, OnGpu().dtype(at::kByte));
    EXPECT_EQ(Gpu().Memory().allocated_bytes, before.allocated_bytes + bytes);
    EXPECT_GE(Gpu().Memory().reserved_bytes, before.allocated_bytes + bytes);
    EXPECT_EQ(Gpu().Memory().free_bytes, before.free_bytes - bytes);
    EXPECT_EQ(Gpu(1).Memory().free_bytes, Gpu(1).Memory().total_bytes - Gpu(1).Memory().allocated_bytes);
  }
  const DeviceMemory after = Gpu().Memory();
  EXPECT_EQ(after.allocated_bytes, before.allocated_bytes);
  EXPECT_GE(after.reserved_bytes, before.allocated_bytes + bytes) << "it is kept for reuse";
  EXPECT_EQ(after.free_bytes, before.free_bytes) << "what LibTorch keeps for reuse is free to us";
  EXPECT_EQ(after.peak_allocated_bytes, before.allocated_bytes + bytes);
  Gpu().ResetPeak();
  EXPECT_EQ(Gpu().Memory().peak_allocated_bytes, before.allocated_bytes);
}

// What the planner measures of a layer.
TEST_F(CudaModuleStandIn, TheAllocatorReportsToTheThreadThatAsks) {
  class Noted : public c10::MemoryReportingInfoBase {
   public:
    void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device device) override {
      noted.emplace_back(device, change);
    }
    void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
    bool memoryProfilingEnabled() const override { return true; }
    std::vector<std::pair<c10::Device, int64_t>> noted;
  };
  const auto memory = std::make_shared<Noted>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    Thread("other", [] { at::empty({1 << 20}, OnGpu()); });
    at::empty({1 << 20}, OnGpu(1));
  }
  const int64_t bytes = 4 << 20;
  EXPECT_THAT(memory->noted,
              ::testing::ElementsAre(std::pair(Gpu(1).device(), bytes), std::pair(Gpu(1).device(), -bytes)));
}

TEST_F(CudaModuleStandIn, TellsAFullDevice) {
  const absl::Status full = RunTorch([&] { at::empty({int64_t{1} << 30}, OnGpu()); });  // floats
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
}

TEST_F(CudaModuleStandIn, SynchronizeWaitsForAllStreams) {
  Held compute(Gpu(), kCompute), copy(Gpu(), kCopyOut);
  const EventPtr one = Gpu().Record(kCompute), two = Gpu().Record(kCopyOut);
  Gpu().Synchronize();
  EXPECT_TRUE(one->Ready() && two->Ready());
  EXPECT_FALSE(Gpu().lost());
}

// The module looks for devices once in a process: each of these needs its own.
struct NoDeviceCase {
  int count;
  int error;
  bool asked_before;  // LibTorch was, whether there is CUDA
  const char* told;
};
class NoDevices : public ::testing::TestWithParam<NoDeviceCase> {};
TEST_P(NoDevices, AreToldWithTheReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StandIn<void(int, int)>("StandInCount")(GetParam().count, GetParam().error);
        if (GetParam().asked_before) at::globalContext().hasCUDA();
        const OpenedCuda opened = OpenCudaModule({.driver = "libcuda.so.1", .module = CUDA_MODULE});
        std::fputs(opened.found.why_none.c_str(), stderr);
        std::exit(opened.found.count);
      },
      ::testing::ExitedWithCode(0), HasSubstr(GetParam().told));
}
INSTANTIATE_TEST_SUITE_P(
    All, NoDevices,
    ::testing::Values(NoDeviceCase{0, 0, false, "CUDA finds no device"},
                      NoDeviceCase{2, 100, false, "CUDA finds no device: no CUDA-capable device is detected"},
                      NoDeviceCase{2, 0, true, "LibTorch was asked about CUDA before its CUDA part was opened"}));

// Otherwise the process would end: nobody above expects it.
TEST(WithoutDevices, WhatLibTorchThrowsIsWhyThereIsNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StandIn<void(int)>("StandInCountTimes")(2);  // the module counts, and LibTorch once
        const OpenedCuda opened = OpenCudaModule({.driver = "libcuda.so.1", .module = CUDA_MODULE});
        std::fputs(opened.found.why_none.c_str(), stderr);
        std::exit(opened.found.count);
      },
      ::testing::ExitedWithCode(0), HasSubstr("LibTorch can't use CUDA ("));
}

// One too old or too new for this LibTorch, beside one that it runs.
TEST(WithoutKernels, SuchADeviceIsLeftOut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StandIn<void(int)>("StandInWithoutKernels")(0);
        OpenAccelerators({}, {.driver = "libcuda.so.1", .module = CUDA_MODULE});
        const auto devices = ParseDevices({}, {}, {0});
        const auto named = ParseDevices({"cuda:0"}, {}, {0});
        std::fputs(std::string(named.status().message()).c_str(), stderr);
        std::exit(devices.ok() && devices->size() == 1 && devices->front().name == "cuda:1" && !named.ok() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), HasSubstr("no kernel image is available"));
}

}  // namespace
}  // namespace penstock
