#pragma once

// What libpenstock_cuda.so offers: the one function that the core looks up in it. Classes cross this seam, so both
// sides must be built from the same headers by the same compiler; the version refuses what is visibly not.

#include <string>
#include <vector>

#include "engine/device/device_streams.h"

namespace penstock {

// Raised with every change of this file or of device_streams.h.
inline constexpr int kCudaModuleVersion = 2;
inline constexpr char kCudaModuleEntry[] = "PenstockCudaModule";

// What the module found. It and the streams live as long as the process.
struct CudaModule {
  int version = kCudaModuleVersion;
  std::vector<DeviceStreams*> devices;  // by index
  std::string why_none;                 // a sentence, where there is no device
};

using CudaModuleFunction = const CudaModule* (*)();

}  // namespace penstock
