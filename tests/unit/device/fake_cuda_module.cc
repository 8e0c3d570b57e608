// A module that finds devices where there are none: what libpenstock_cuda.so answers, without CUDA.
//
// Build it with FAKE_VERSION, the version that it claims, and FAKE_DEVICES, how many devices it finds.

#include "engine/device/cuda_module_entry.h"
#include "tests/support/stand_in_device.h"

extern "C" __attribute__((visibility("default"))) const penstock::CudaModule* PenstockCudaModule() {
  static penstock::testing::StreamLog log;
  static auto* module = [] {
    auto* made = new penstock::CudaModule{.version = FAKE_VERSION, .devices = {}, .why_none = "the GPUs are away"};
    for (int i = 0; i < FAKE_DEVICES; ++i) {
      made->devices.push_back(new penstock::testing::StandInStreams(i, &log));
    }
    return made;
  }();
  return module;
}
