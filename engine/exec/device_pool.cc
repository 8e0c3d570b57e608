#include "engine/exec/device_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/device/device_streams.h"
#include "engine/exec/device_worker.h"

namespace penstock {

namespace {

// Whether it may have to wait for a core that another device works on. Devices without cores of their own use all of
// them.
bool SharesCores(const Device& device, const std::vector<Device>& devices) {
  const std::vector<int> usable = UsableCores();
  const auto cores_of = [&usable](const Device& one) -> const std::vector<int>& {
    return one.cores.empty() ? usable : one.cores;
  };
  const std::vector<int>& cores = cores_of(device);
  const auto meets = [&](const Device& other) {
    const std::vector<int>& others = cores_of(other);
    return std::find_first_of(cores.begin(), cores.end(), others.begin(), others.end()) != cores.end();
  };
  const size_t enough_for = device.cores.empty() ? cores.size() : 1;
  return static_cast<size_t>(std::count_if(devices.begin(), devices.end(), meets)) > enough_for;
}

}  // namespace

DevicePool::DevicePool(std::vector<Device> devices, Mode mode) : devices_(std::move(devices)), mode_(mode) {
  for (const Device& device : devices_) {
    const auto waits = mode == Mode::kSerial           ? DeviceWorker::IdlePolicy::kForCalls
                       : SharesCores(device, devices_) ? DeviceWorker::IdlePolicy::kAsleep
                                                       : DeviceWorker::IdlePolicy::kSpinsFirst;
    workers_.push_back(std::make_unique<DeviceWorker>(device, waits));
  }
}

DevicePool::~DevicePool() = default;

absl::StatusOr<DeviceWorker*> DevicePool::Find(const std::string& device) const {
  const std::string wanted = CanonicalDeviceName(device);
  for (const auto& worker : workers_) {
    if (worker->device().name == wanted) return worker.get();
  }
  return NoSuchDevice(device, devices_);
}

absl::Status NoSuchDevice(const std::string& device, const std::vector<Device>& devices) {
  std::string known;
  for (const Device& one : devices) absl::StrAppend(&known, known.empty() ? "" : ", ", one.name);
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("spec.devices: no such device (there are ", known, "), got ", device))
      .With("field", "spec.devices")
      .With("value", device);
}

std::string DevicePool::LostDevice() const {
  const auto lost =
      std::find_if(devices_.begin(), devices_.end(), [](const Device& device) { return StreamsOf(device).lost(); });
  return lost == devices_.end() ? "" : lost->name;
}

void DevicePool::Wait(absl::Notification& done) {
  if (mode_ == Mode::kThreads) {
    done.WaitForNotification();
    return;
  }
  bool stood_still = false;  // in the round before
  while (!done.HasBeenNotified()) {
    std::vector<DeviceWorker*> ready;  // at the beginning of this round, as if all devices took their actions at once
    for (auto& worker : workers_) {
      if (worker->Ready()) ready.push_back(worker.get());
    }
    bool stands_still = ready.empty() && !done.HasBeenNotified();
    if (stands_still) {
      stands_still =
          std::none_of(workers_.begin(), workers_.end(), [](auto& worker) { return worker->AwaitAccelerator(); });
      // But for what accelerators still do, nothing can become ready by itself in serial mode: a verified schedule
      // ends. A look that hands norms on lets those go on that were looked at before.
      PENSTOCK_CHECK(!stands_still || !stood_still);
    }
    stood_still = stands_still;
    for (DeviceWorker* worker : ready) {
      if (!done.HasBeenNotified()) worker->PollOnce();
    }
  }
}

}  // namespace penstock
