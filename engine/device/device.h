#pragma once

// Devices that hold stages. cpu:k is a set of cores with a thread of its own, so that stages overlap on a plain
// machine; cuda:k is a GPU with a thread that drives it.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"

namespace penstock {

enum class DeviceKind { kCpu, kCuda };

// One device.
//
// Model:     One of another rank's is named with its number, and measured on a device of this process in its stead,
//            whose kind, index and cores it has here.
// Units:     `cores` are CPU numbers, those of its thread and LibTorch's; `memory_limit_bytes` bounds what the planner
//            may place here, 0 means unlimited.
struct Device {
  std::string name;  // cpu:0, cuda:1; 1/cpu:0
  std::vector<int> cores;
  int64_t memory_limit_bytes = 0;
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // the 1 of cuda:1
  Rank rank = {};
};

// The CUDA devices of this machine, or why there is none.
struct CudaFound {
  int count = 0;
  std::function<int64_t(int)> free_bytes;  // of a device, by index; 0 if unknown. Empty without devices
  std::string why_none = "CUDA was not opened";
  // Why a device can't be used, by index; empty if it can. It runs a kernel there. Empty without devices.
  std::function<std::string(int)> why_unusable;
};

// The name that a device is known by: cpu is cpu:0, cuda is cuda:0, also behind a rank's number, and 0/ goes; any other
// name as it is.
std::string CanonicalDeviceName(std::string_view name);

// The name of a rank's device, by which the leader knows it (1/cpu:0); and the one that it has there.
std::string NameOnRank(Rank rank, const std::string& device);
std::string LocalDeviceName(const std::string& device);

// A device of another rank as this process, with `own` devices, knows it.
Device DeviceOfRank(Rank rank, const std::string& name, int64_t memory_limit_bytes, const std::vector<Device>& own);

// Builds the devices of a daemon.
//
// `devices` holds entries like "cuda:1" or "cpu:0" or "cpu:1=2,3" or "cpu:1=2-3"; without cores, the usable ones are
// shared out evenly among the devices. Empty means every CUDA device that can be used (a warning in the log names the
// others), or if there is none one device per usable core.
// `memory` holds entries like "cpu:0=8GiB" (suffixes KiB, MiB, GiB, TiB, or plain bytes); without one, a CUDA device is
// limited to what is free on it. With more devices than cores, devices share cores.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the entry: bad name, duplicate, core not usable, bad size, no such
//            CUDA device, or one that can't be used, and why.
absl::StatusOr<std::vector<Device>> ParseDevices(const std::vector<std::string>& devices,
                                                 const std::vector<std::string>& memory,
                                                 const std::vector<int>& usable_cores, const CudaFound& cuda);
// The same with what OpenAccelerators() found.
absl::StatusOr<std::vector<Device>> ParseDevices(const std::vector<std::string>& devices,
                                                 const std::vector<std::string>& memory,
                                                 const std::vector<int>& usable_cores);

// Gives LibTorch's operators one intra-op thread per core of the device, in the calling thread only. A stage's thread
// calls it first, after it was pinned.
void UseCores(const Device& device);

// Memory that this process may use: the machine's, or less where a control group limits it.
int64_t MachineMemoryBytes();

}  // namespace penstock
