#pragma once

// The threads of the devices: one per device, shared by all pipelines, or none at all in serial mode.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "engine/device/device.h"

namespace penstock {

class DeviceWorker;

// INVALID_ARGUMENT / SPEC_INVALID naming a device that is not among those.
absl::Status NoSuchDevice(const std::string& device, const std::vector<Device>& devices);

// Owns one DeviceWorker per device.
//
// Threads:   any method from any thread. In serial mode nothing runs until somebody calls Wait(), and then on that
//            thread, in rounds: every device that is ready runs one action, in their order. Failures repeat exactly.
// Lifecycle: outlives every pipeline; the destructor joins the threads.
class DevicePool {
 public:
  enum class Mode { kThreads, kSerial };
  DevicePool(std::vector<Device> devices, Mode mode);
  ~DevicePool();

  const std::vector<Device>& devices() const { return devices_; }
  // The worker of a device. Fails: NoSuchDevice().
  absl::StatusOr<DeviceWorker*> Find(const std::string& device) const;
  // Waits for `done`; in serial mode it runs the devices' work meanwhile.
  void Wait(absl::Notification& done);
  Mode mode() const { return mode_; }
  // The first device that does nothing any more (device_streams.h), or "". From any thread.
  std::string LostDevice() const;

 private:
  const std::vector<Device> devices_;
  const Mode mode_;
  std::vector<std::unique_ptr<DeviceWorker>> workers_;
};

}  // namespace penstock
