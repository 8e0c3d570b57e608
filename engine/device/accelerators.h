#pragma once

// Finds the accelerators of this machine. Code that needs CUDA's libraries stands in libpenstock_cuda.so, so that one
// daemon serves machines with and without them, and machines without them load nothing.

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "engine/device/cuda_module.h"
#include "engine/device/device.h"

namespace penstock {

// Opens what `devices` (entries as ParseDevices takes them) may need, and remembers what was found. CUDA is left alone
// where devices are named and none of them is CUDA's, and where there is no driver.
//
// Lifecycle: first thing in main, before any question about CUDA: LibTorch remembers what it found first. A second call
//            changes nothing.
// Fails:     never: what is missing, and why, is said by the device that asks for it (FoundCuda, ParseDevices).
// Example:   OpenAccelerators(options.devices);
//
// `libraries`: usually only tests set this.
void OpenAccelerators(const std::vector<std::string>& devices, const CudaLibraries& libraries = {});

// Whether it is the host, or an accelerator that OpenAccelerators() found.
bool IsOpen(const c10::Device& device);

// What OpenAccelerators() found; nothing before it.
CudaFound FoundCuda();

}  // namespace penstock
