// A module that finds devices where there are none: what libpenstock_cuda.so answers, without CUDA.
//
// Build it with FAKE_VERSION, the version that it claims, and FAKE_DEVICES, how many devices it finds.

#include <string>

#include "engine/device/cuda/module_entry.h"
#include "tests/support/fake_streams.h"

extern "C" __attribute__((visibility("default"))) const penstock::CudaModule* PenstockCudaModule() {
  static penstock::testing::StreamLog log;
  static auto* module = [] {
    auto* made = new penstock::CudaModule{.version = FAKE_VERSION, .devices = {}, .why_none = "the GPUs are away"};
    for (int i = 0; i < FAKE_DEVICES; ++i) {
      made->devices.push_back(new penstock::testing::FakeStreams("cuda" + std::to_string(i), &log));
    }
    return made;
  }();
  return module;
}
