#pragma once

// Devices that hold stages. cpu:k is a set of cores with a thread of its own, so that stages overlap on a plain machine.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// One device.
//
// Units:     `cores` are CPU numbers; `memory_limit_bytes` bounds what the planner may place here, 0 means unlimited.
struct Device {
  std::string name;  // cpu:0
  std::vector<int> cores;
  int64_t memory_limit_bytes = 0;
};

// Builds the devices of a daemon.
//
// `devices` holds entries like "cpu:0" or "cpu:1=2,3" or "cpu:1=2-3"; without cores, the usable ones are shared out evenly
// among the devices. Empty means one device per usable core. `memory` holds entries like "cpu:0=8GiB" (suffixes KiB, MiB,
// GiB, TiB, or plain bytes). With more devices than cores, devices share cores.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the entry: bad name, duplicate, core not usable, bad size.
absl::StatusOr<std::vector<Device>> ParseDevices(const std::vector<std::string>& devices,
                                                 const std::vector<std::string>& memory,
                                                 const std::vector<int>& usable_cores);

// Gives LibTorch's operators one intra-op thread per core of the device, in the calling thread only. A stage's thread
// calls it first, after it was pinned.
void UseCores(const Device& device);

// Memory that this process may use: the machine's, or less where a control group limits it.
int64_t MachineMemoryBytes();

}  // namespace penstock
