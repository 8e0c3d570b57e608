#pragma once

// Opens libpenstock_cuda.so, the one place of code that needs CUDA's libraries.

#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/device_streams.h"

namespace penstock {

// Names for the dynamic linker; it looks in the program's own run path, which holds the program's folder.
struct CudaLibraries {
  std::string driver = "libcuda.so.1";
  std::string module = "libpenstock_cuda.so";
};

struct OpenedCuda {
  CudaFound found;
  std::vector<DeviceStreams*> devices;  // by index; they live as long as the process
};

// Loads the module if there is a driver, and asks it for devices. `found.why_none` says what is missing.
OpenedCuda OpenCudaModule(const CudaLibraries& libraries);

}  // namespace penstock
