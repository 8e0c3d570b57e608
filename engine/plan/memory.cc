#include "engine/plan/memory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/plan/lanes.h"
#include "engine/plan/planner.h"
#include "engine/schedule/build.h"
#include "engine/schedule/peak.h"

namespace penstock {
namespace {

std::vector<int64_t> Prefix(const std::vector<LayerProfile>& profile, int64_t LayerProfile::*bytes) {
  std::vector<int64_t> prefix(profile.size() + 1, 0);
  for (size_t i = 0; i < profile.size(); ++i) prefix[i + 1] = prefix[i] + profile[i].*bytes;
  return prefix;
}

absl::StatusOr<std::vector<DeviceNeed>> NeedsOf(const Plan& plan, const std::vector<Device>& devices) {
  const BuildRequest request = BuildRequestOf(plan);
  PENSTOCK_ASSIGN_OR_RETURN(const Schedule lists, BuildSchedule(request));
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(lists, CostsOf(plan)));
  std::vector<std::string> device_of(LaneCount(plan));
  for (const StagePlan& stage : plan.stages) device_of[stage.lane] = stage.device;
  return NeedOfDevices(device_of, LaneMemory(lists, simulation, BytesOf(plan), plan.skips), devices);
}

// Of the devices on the host together.
absl::StatusOr<DeviceNeed> HostNeed(const Plan& plan, const std::vector<Device>& devices) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<DeviceNeed> needs, NeedsOf(plan, devices));
  DeviceNeed host{.device = "the host", .lanes = {}, .limit_bytes = MachineMemoryBytes(), .buffers = {}};
  for (const DeviceNeed& need : needs) {
    const auto on_host = [&need](const Device& device) {
      return device.name == need.device && device.kind == DeviceKind::kCpu && device.rank == Rank(0);
    };
    if (std::none_of(devices.begin(), devices.end(), on_host)) continue;
    host.lanes.insert(host.lanes.end(), need.lanes.begin(), need.lanes.end());
    host.buffers += need.buffers;
  }
  return host;
}

// The devices on the host share the machine's memory, whatever their limits.
absl::Status CheckOnHost(const Plan& plan, const std::vector<Device>& devices) {
  PENSTOCK_ASSIGN_OR_RETURN(DeviceNeed host, HostNeed(plan, devices));
  return CheckNeeds({std::move(host)});
}

constexpr char kUndoIsKept[] = "Undo: ";

}  // namespace

absl::Status CheckStateFits(const PlanRequest& request) {
  double needed = 0;
  for (int64_t bytes : request.parameter_bytes) {
    needed += static_cast<double>(bytes) * (2 + request.optimizer_state_ratio);
  }
  double limit = 0;
  std::set<std::string> counted;  // a device may be named several times
  for (const Device& device : request.devices) {
    if (!counted.insert(device.name).second) continue;
    limit += device.memory_limit_bytes == 0 ? std::numeric_limits<double>::infinity()
                                            : static_cast<double>(device.memory_limit_bytes);
  }
  limit = std::min(limit, static_cast<double>(MachineMemoryBytes()));
  if (needed <= limit) return absl::OkStatus();
  const std::string value = absl::StrFormat("%.0f", needed);
  return Error(absl::StatusCode::kFailedPrecondition, "PLAN_DOES_NOT_FIT",
               absl::StrFormat(
                   "spec.model: weights, gradients and optimizer state need %s bytes, and %s may hold %.0f in "
                   "all; the largest class is %s",
                   value, request.devices.size() == 1 ? request.devices[0].name : "the devices", limit,
                   request.optimizer_state_ratio > 1 ? "optimizer state" : "weights"))
      .With("field", "spec.model")
      .With("value", value);
}

std::vector<DeviceNeed> NeedOfDevices(const std::vector<std::string>& device_of, const std::vector<BufferBytes>& memory,
                                      const std::vector<Device>& devices) {
  std::vector<DeviceNeed> needs;
  for (size_t lane = 0; lane < device_of.size(); ++lane) {
    const std::string& name = device_of[lane];
    auto need = std::find_if(needs.begin(), needs.end(), [&](const DeviceNeed& one) { return one.device == name; });
    if (need == needs.end()) {
      const auto device = std::find_if(devices.begin(), devices.end(), [&](const Device& d) { return d.name == name; });
      const int64_t limit = device == devices.end() ? 0 : device->memory_limit_bytes;
      need = needs.insert(needs.end(), {.device = name, .lanes = {}, .limit_bytes = limit, .buffers = {}});
    }
    need->lanes.push_back(static_cast<int>(lane));
    need->buffers += memory[lane];
  }
  return needs;
}

absl::Status CheckNeeds(const std::vector<DeviceNeed>& needs) {
  for (const DeviceNeed& need : needs) {
    const int64_t needed = need.buffers.total();
    if (need.limit_bytes == 0 || needed <= need.limit_bytes) continue;
    const BufferClass largest = need.buffers.largest();
    return Error(absl::StatusCode::kFailedPrecondition, "PLAN_DOES_NOT_FIT",
                 absl::StrCat("the plan needs ", needed, " bytes on ", need.device, " (lane ",
                              absl::StrJoin(need.lanes, ", "), "), whose limit is ", need.limit_bytes,
                              "; the largest class is ", std::string(ToString(largest)), " with ",
                              need.buffers[largest], " bytes"))
        .With("device", need.device)
        .With("lane", absl::StrJoin(need.lanes, ","))
        .With("field", "spec.model")
        .With("value", absl::StrCat(needed));
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const Plan& plan, const std::vector<Device>& devices) {
  if (std::all_of(devices.begin(), devices.end(), [](const Device& d) { return d.memory_limit_bytes == 0; })) {
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<DeviceNeed> needs, NeedsOf(plan, devices));
  return CheckNeeds(needs);
}

void AddUndo(const std::vector<Device>& devices, Plan& plan) {
  Plan with = plan;
  with.undo = true;
  int64_t bytes = 0;
  for (StagePlan& stage : with.stages) {
    stage.undo_bytes = stage.parameter_bytes + stage.optimizer_bytes;
    bytes += stage.undo_bytes;
  }
  absl::Status fits = CheckOnHost(with, devices);
  if (fits.ok()) fits = CheckMemory(with, devices);
  if (fits.ok()) {
    plan = std::move(with);
    plan.why.push_back(absl::StrCat(kUndoIsKept, "stages copy the ", bytes,
                                    " bytes that a step changes, so that a step that fails is undone."));
  } else {
    plan.why.push_back(absl::StrCat("No undo: a step that fails half-way needs a restore, for with copies of the ",
                                    bytes, " bytes that it changes ", std::string(fits.message()), "."));
  }
}

absl::StatusOr<int64_t> HostBytes(const Plan& plan, const std::vector<Device>& devices) {
  PENSTOCK_ASSIGN_OR_RETURN(const DeviceNeed host, HostNeed(plan, devices));
  return host.buffers.total();
}

void DropUndo(const std::string& why, Plan& plan) {
  plan.undo = false;
  for (StagePlan& stage : plan.stages) stage.undo_bytes = 0;
  for (std::string& sentence : plan.why) {
    if (!absl::StartsWith(sentence, kUndoIsKept)) continue;
    sentence = absl::StrCat("No undo: a step that fails half-way needs a restore, for with copies of what it changes ",
                            why, ".");
  }
}

std::function<bool(int stage, int begin, int end)> FitsOnDevice(const PlanRequest& request,
                                                                const std::vector<LayerProfile>& profile, int stages) {
  const absl::StatusOr<std::vector<int>> lane_of = LanesOfStages(request.schedule, stages);
  if (!lane_of.ok()) return nullptr;
  std::map<size_t, int64_t> stages_on;
  for (int lane : *lane_of) ++stages_on[lane % request.devices.size()];
  std::vector<int64_t> limits;
  for (int lane : *lane_of) {
    const size_t device = lane % request.devices.size();
    limits.push_back(request.devices[device].memory_limit_bytes / stages_on[device]);
  }
  if (std::all_of(limits.begin(), limits.end(), [](int64_t limit) { return limit == 0; })) return nullptr;
  // How many activations a stage holds depends on the lists alone, not on the cut.
  const absl::StatusOr<Schedule> lists = BuildSchedule(BuildRequestOf(request.schedule, stages));
  if (!lists.ok()) return nullptr;
  return [limits = std::move(limits), peaks = ComputePeaks(ListsByStage(*lists)),
          parameters = Prefix(profile, &LayerProfile::parameter_bytes),
          stash = Prefix(profile, &LayerProfile::stash_bytes), ratio = request.optimizer_state_ratio,
          &profile](int stage, int begin, int end) {
    if (limits[stage] == 0) return true;
    const double input = begin == 0 ? 0 : static_cast<double>(profile[begin - 1].output_bytes);
    const double output =
        stage + 1 == static_cast<int>(limits.size()) ? 0 : static_cast<double>(profile[end - 1].output_bytes);
    const double state = static_cast<double>(parameters[end] - parameters[begin]) * (2 + ratio);
    // An input is held as long as its activations, recomputed or not; one more may have arrived, and one gradient.
    const double held = static_cast<double>(std::max(peaks.full[stage], peaks.stashed[stage])) + 1;
    const double activations =
        static_cast<double>(peaks.full[stage] * (stash[end] - stash[begin])) + held * input + output;
    return state + activations <= static_cast<double>(limits[stage]);
  };
}

}  // namespace penstock
