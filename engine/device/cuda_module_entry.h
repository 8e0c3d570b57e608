#pragma once

// What libpenstock_cuda.so offers: the one function that the core looks up in it. Classes cross this seam, so both
// sides must be built from the same headers by the same compiler; the version refuses what is not of the same headers
// and the same LibTorch.

#include <string>
#include <vector>

#include "engine/device/device_streams.h"

namespace penstock {

// From the bytes of this file and of device_streams.h, and LibTorch's version (cmake/CudaModuleVersion.cmake).
inline constexpr int kCudaModuleVersion = PENSTOCK_CUDA_MODULE_VERSION;
inline constexpr char kCudaModuleEntry[] = "PenstockCudaModule";

// What the module found. It and the streams live as long as the process.
struct CudaModule {
  int version = kCudaModuleVersion;     // stays first and an int: programs of any version read it
  std::vector<DeviceStreams*> devices;  // by index
  std::string why_none;                 // a sentence, where there is no device
};

using CudaModuleFunction = const CudaModule* (*)();

}  // namespace penstock
