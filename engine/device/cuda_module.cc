#include "engine/device/cuda_module.h"

#include <ATen/ops/ones.h>
#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/cuda_module_entry.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

OpenedCuda None(std::string why) { return {.found = {.count = 0, .free_bytes = {}, .why_none = std::move(why)}}; }

// The linker's last complaint, fit for a message.
std::string Complaint() {
  const char* text = dlerror();
  return text == nullptr ? "it gives no reason" : CleanFirstLine(text);
}

int64_t FreeBytes(DeviceStreams& device) {
  int64_t free = 0;
  const absl::Status status = RunTorch([&] { free = device.Memory().free_bytes; });
  return status.ok() ? free : 0;
}

// A kernel of LibTorch's: it has none for a GPU that is older or newer than those it was compiled for. One that is full
// now may be used later.
std::string WhyUnusable(DeviceStreams& device) {
  const absl::Status status = RunTorch([&] {
    device.RunOn(StreamKind::kCompute, [&] { at::ones({1}, at::TensorOptions().device(device.device())); });
    device.Synchronize();
  });
  return ReasonOf(status) == "DEVICE_MEMORY" ? "" : std::string(status.message());
}

}  // namespace

OpenedCuda OpenCudaModule(const CudaLibraries& libraries) {
  // Left open: the module needs it next.
  if (dlopen(libraries.driver.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    return None(absl::StrCat("this machine has no NVIDIA driver (", Complaint(), ")"));
  }
  // Global, as LibTorch's own parts find each other's symbols; never closed, as LibTorch keeps pointers into it.
  void* library = dlopen(libraries.module.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return None(absl::StrCat("the CUDA module can't be opened (", Complaint(), ")"));
  const auto entry = reinterpret_cast<CudaModuleFunction>(dlsym(library, kCudaModuleEntry));
  if (entry == nullptr) return None(absl::StrCat(libraries.module, " is no CUDA module of this program"));
  const CudaModule* module = nullptr;
  if (const absl::Status status = RunTorch([&] { module = entry(); }); !status.ok()) {
    return None(absl::StrCat("LibTorch can't use CUDA (", status.message(), ")"));
  }
  if (module->version != kCudaModuleVersion) {
    return None(absl::StrCat("the CUDA module has version ", module->version, ", but this program needs version ",
                             kCudaModuleVersion));
  }
  if (module->devices.empty()) return None(CleanFirstLine(module->why_none));

  OpenedCuda opened{.found = {.count = static_cast<int>(module->devices.size()), .free_bytes = {}, .why_none = ""},
                    .devices = module->devices};
  opened.found.free_bytes = [devices = module->devices](int index) { return FreeBytes(*devices.at(index)); };
  opened.found.why_unusable = [devices = module->devices](int index) { return WhyUnusable(*devices.at(index)); };
  return opened;
}

}  // namespace penstock
