#include "engine/plan/memory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/error.h"
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

absl::Status CheckMemory(const Plan& plan, const std::vector<Device>& devices) {
  for (const Device& device : devices) {
    if (device.memory_limit_bytes == 0) continue;
    std::map<std::string, int64_t> classes;
    for (const StagePlan& stage : plan.stages) {
      if (stage.device != device.name) continue;
      classes["weights"] += stage.parameter_bytes;
      classes["gradients"] += stage.parameter_bytes;
      classes["optimizer state"] += stage.optimizer_bytes;
      classes["activations"] += stage.peak_activation_bytes;
    }
    int64_t needed = 0;
    auto largest = classes.begin();
    for (auto it = classes.begin(); it != classes.end(); ++it) {
      needed += it->second;
      if (it->second > largest->second) largest = it;
    }
    if (needed <= device.memory_limit_bytes) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "PLAN_DOES_NOT_FIT",
                 absl::StrCat("the plan needs ", needed, " bytes on ", device.name, ", whose limit is ",
                              device.memory_limit_bytes, "; the largest class is ", largest->first, " with ",
                              largest->second, " bytes"))
        .With("device", device.name)
        .With("field", "spec.model")
        .With("value", absl::StrCat(needed));
  }
  return absl::OkStatus();
}

std::function<bool(int stage, int begin, int end)> FitsOnDevice(const PlanRequest& request,
                                                                const std::vector<LayerProfile>& profile, int stages) {
  std::vector<int64_t> limits;
  const absl::StatusOr<std::vector<int>> lane_of = LanesOfStages(request.schedule, stages);
  if (!lane_of.ok()) return nullptr;
  for (int lane : *lane_of) limits.push_back(request.devices[lane % request.devices.size()].memory_limit_bytes);
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
    const double state = static_cast<double>(parameters[end] - parameters[begin]) * (2 + ratio);
    const double activations = static_cast<double>(peaks.full[stage] * (stash[end] - stash[begin])) +
                               static_cast<double>(peaks.stashed[stage]) * input;
    return state + activations <= static_cast<double>(limits[stage]);
  };
}

}  // namespace penstock
