#include "engine/exec/device_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/exec/device_worker.h"

namespace penstock {

DevicePool::DevicePool(std::vector<Device> devices, Mode mode) : devices_(std::move(devices)), mode_(mode) {
  for (const Device& device : devices_) {
    workers_.push_back(std::make_unique<DeviceWorker>(device, mode == Mode::kThreads));
  }
}

DevicePool::~DevicePool() = default;

absl::StatusOr<DeviceWorker*> DevicePool::Find(const std::string& device) const {
  std::string known;
  const std::string wanted = CanonicalDeviceName(device);
  for (const auto& worker : workers_) {
    if (worker->device().name == wanted) return worker.get();
    absl::StrAppend(&known, known.empty() ? "" : ", ", worker->device().name);
  }
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("spec.devices: no such device (there are ", known, "), got ", device))
      .With("field", "spec.devices")
      .With("value", device);
}

void DevicePool::Wait(absl::Notification& done) {
  if (mode_ == Mode::kThreads) {
    done.WaitForNotification();
    return;
  }
  while (!done.HasBeenNotified()) {
    std::vector<DeviceWorker*> ready;  // at the beginning of this round, as if all devices took their actions at once
    for (auto& worker : workers_) {
      if (worker->Ready()) ready.push_back(worker.get());
    }
    // Nothing can become ready by itself in serial mode: a verified schedule never gets here.
    PENSTOCK_CHECK(!ready.empty() || done.HasBeenNotified());
    for (DeviceWorker* worker : ready) {
      if (!done.HasBeenNotified()) worker->PollOnce();
    }
  }
}

}  // namespace penstock
