#include "engine/device/accelerators.h"

#include <algorithm>
#include <atomic>

#include "absl/base/const_init.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/device/device_streams.h"

namespace penstock {
namespace {

// What was found; null until somebody looked. Never freed: LibTorch uses devices until the process ends.
std::atomic<const OpenedCuda*> opened = nullptr;
absl::Mutex opening(absl::kConstInit);

bool NamesCuda(const std::string& entry) { return absl::StartsWith(entry, "cuda"); }

}  // namespace

void OpenAccelerators(const std::vector<std::string>& devices, const CudaLibraries& libraries) {
  absl::MutexLock lock(&opening);
  if (opened.load(std::memory_order_acquire) != nullptr) return;
  auto* cuda = new OpenedCuda;
  if (devices.empty() || std::any_of(devices.begin(), devices.end(), NamesCuda)) {
    *cuda = OpenCudaModule(libraries);
    LogInfo("looked for CUDA devices", {{"count", absl::StrCat(cuda->found.count)}, {"why", cuda->found.why_none}});
  }
  opened.store(cuda, std::memory_order_release);
}

CudaFound FoundCuda() {
  const OpenedCuda* cuda = opened.load(std::memory_order_acquire);
  return cuda == nullptr ? CudaFound() : cuda->found;
}

bool IsOpen(const c10::Device& device) {
  if (device.is_cpu()) return true;
  const OpenedCuda* cuda = opened.load(std::memory_order_acquire);
  if (cuda == nullptr) return false;
  return std::any_of(cuda->devices.begin(), cuda->devices.end(),
                     [&](const auto& streams) { return streams->device() == device; });
}

DeviceStreams& StreamsOf(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return CpuStreams();
  const OpenedCuda* cuda = opened.load(std::memory_order_acquire);
  PENSTOCK_CHECK(cuda != nullptr && device.index < cuda->found.count);  // ParseDevices makes no other
  return *cuda->devices[device.index];
}

c10::Device TorchDevice(const Device& device) { return StreamsOf(device).device(); }

}  // namespace penstock
