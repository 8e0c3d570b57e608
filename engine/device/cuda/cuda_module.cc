// The one function of libpenstock_cuda.so.

#include <ATen/Context.h>
#include <cuda_runtime_api.h>

#include "engine/device/cuda/cuda_streams.h"
#include "engine/device/cuda_module_entry.h"

namespace penstock {
namespace {

const CudaModule* Find() {
  auto* module = new CudaModule;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    module->why_none = std::string("CUDA finds no device: ") + cudaGetErrorString(error);
  } else if (count == 0) {
    module->why_none = "CUDA finds no device";
  } else if (!at::globalContext().hasCUDA()) {
    module->why_none = "LibTorch was asked about CUDA before its CUDA part was opened";
  } else {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    for (int i = 0; i < count; ++i) module->devices.push_back(new CudaStreams(i));
  }
  return module;
}

}  // namespace
}  // namespace penstock

extern "C" __attribute__((visibility("default"))) const penstock::CudaModule* PenstockCudaModule() {
  static const penstock::CudaModule* module = penstock::Find();
  return module;
}
