#pragma once

// Whether a plan fits where it is to stand.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/lane_memory.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/profile.h"

namespace penstock {

// Compares weights, gradients and optimizer state with the memory of all devices together before any layer is made, so
// that a mistyped width does not exhaust the machine's memory.
//
// Fails:     PLAN_DOES_NOT_FIT.
absl::Status CheckStateFits(const PlanRequest& request);

// What one device has to hold.
struct DeviceNeed {
  std::string device;
  std::vector<int> lanes;   // that stand there
  int64_t limit_bytes = 0;  // 0: none
  BufferBytes buffers;      // of its lanes together
};

// Of the devices that lanes stand on, in the order of the first lane of each. `device_of` and `memory` have one entry
// per lane.
std::vector<DeviceNeed> NeedOfDevices(const std::vector<std::string>& device_of, const std::vector<BufferBytes>& memory,
                                      const std::vector<Device>& devices);

// Every device against its limit.
//
// Fails:     PLAN_DOES_NOT_FIT naming the device with its lanes, its limit and the largest class of bytes.
absl::Status CheckNeeds(const std::vector<DeviceNeed>& needs);

// The same of a plan.
//
// Fails:     as CheckNeeds.
absl::Status CheckMemory(const Plan& plan, const std::vector<Device>& devices);

// Sets Plan::undo and the bytes of it on each stage if they fit beside everything else: each device within its limit,
// those on the host together in the machine's memory. Says in Plan::why whether they do.
void AddUndo(const std::vector<Device>& devices, Plan& plan);

// What the devices on the host have to hold together. Sizes that were not measured yet count as 0.
//
// Fails:     as BuildSchedule and Simulate.
absl::StatusOr<int64_t> HostBytes(const Plan& plan, const std::vector<Device>& devices);

// Takes back what AddUndo has added. `why` is the end of a sentence.
void DropUndo(const std::string& why, Plan& plan);

// Whether layers begin ... end-1 alone stay within the share of their stage of its device's limit, with as many
// micro-batches in flight as the schedule holds there; stages on one device have equal shares. Empty if no device that
// would be used has a limit. What it captures must outlive it.
std::function<bool(int stage, int begin, int end)> FitsOnDevice(const PlanRequest& request,
                                                                const std::vector<LayerProfile>& profile, int stages);

}  // namespace penstock
