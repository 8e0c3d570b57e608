#pragma once

// What the tests with GPUs share: the devices, or the reason to skip, and slow work.

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/device/accelerators.h"
#include "engine/device/device.h"
#include "engine/device/device_streams.h"

namespace penstock::testing {

// Skips a test where the machine has too few GPUs.
class GpuTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { OpenAccelerators({"cuda"}); }
  void SetUp() override {
    Need(1);
    for (int i = 0; i < FoundCuda().count; ++i)
      Gpu(i).Synchronize();  // what an earlier test left has no part in this one
  }

  void Need(int count) {
    const CudaFound found = FoundCuda();
    if (found.count == 0) GTEST_SKIP() << "no GPU: " << found.why_none;
    if (found.count < count) GTEST_SKIP() << "needs " << count << " GPUs, and there is " << found.count;
  }

  static Device Cuda(int index) {
    Device device;
    device.name = "cuda:" + std::to_string(index);
    device.kind = DeviceKind::kCuda;
    device.index = index;
    return device;
  }
  static DeviceStreams& Gpu(int index = 0) { return StreamsOf(Cuda(index)); }

  // Every pair of devices of this machine between which tensors are copied; the CPU and one GPU at least.
  static std::vector<std::pair<DeviceStreams*, DeviceStreams*>> Pairs() {
    DeviceStreams* cpu = &CpuStreams();
    std::vector<std::pair<DeviceStreams*, DeviceStreams*>> pairs = {
        {cpu, cpu}, {cpu, &Gpu()}, {&Gpu(), cpu}, {&Gpu(), &Gpu()}};
    if (FoundCuda().count > 1) pairs.insert(pairs.end(), {{&Gpu(0), &Gpu(1)}, {&Gpu(1), &Gpu(0)}});
    return pairs;
  }

  // Keeps a stream of a GPU busy for a tenth of a second or so, without allocating on it. On a CPU nothing is ever
  // late. PENSTOCK_GPU_DELAY: by how many kernels, for a tool that makes each slow.
  static void Delay(DeviceStreams& device, StreamKind stream) {
    if (&device == &CpuStreams()) return;
    static std::vector<at::Tensor> ballast(16);  // by device; 512 MiB each
    at::Tensor& tensor = ballast.at(device.device().index());
    if (!tensor.defined()) {
      // Kernels are loaded at their first use, which may wait for the device: not later, when the delay runs.
      device.RunOn(StreamKind::kCompute, [&] {
        tensor = at::zeros({128 << 20}, at::TensorOptions().device(device.device()));
        tensor.add_(1).fill_(0);
      });
      device.Synchronize();
    }
    static const char* const kernels = std::getenv("PENSTOCK_GPU_DELAY");
    static const int count = kernels == nullptr ? 500 : std::atoi(kernels);
    device.RunOn(stream, [&] {
      for (int i = 0; i < count; ++i) tensor.add_(1);
    });
  }
};

}  // namespace penstock::testing
