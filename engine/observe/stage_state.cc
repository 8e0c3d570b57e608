#include "engine/observe/stage_state.h"

#include "engine/base/check.h"

namespace penstock {
namespace {

using enum StageState;
using Class = StateClass;  // its kFilled can't be named beside that of StageState

constexpr std::array<StageStateInfo, kStageStateCount> kTable = {{
    {kForward, "forward", Class::kWork, "#1f77b4"},
    {kBackward, "backward", Class::kWork, "#2ca02c"},
    {kBackwardInput, "backward_input", Class::kWork, "#66bb6a"},
    {kBackwardWeight, "backward_weight", Class::kWork, "#a5d6a7"},
    {kRecompute, "recompute", Class::kWork, "#9467bd"},
    {kOptimizer, "optimizer", Class::kWork, "#17becf"},
    {kFilled, "filled", Class::kFilled, "#00897b"},
    {kSend, "send", Class::kIdleInStep, "#bcbd22"},
    {kReceive, "receive", Class::kIdleInStep, "#dbdb8d"},
    {kFill, "fill", Class::kIdleInStep, "#ffd54f"},
    {kDrain, "drain", Class::kIdleInStep, "#ffb300"},
    {kWaitActivation, "wait_activation", Class::kIdleInStep, "#ff7043"},
    {kWaitGradient, "wait_gradient", Class::kIdleInStep, "#e53935"},
    {kBlocked, "blocked", Class::kIdleInStep, "#8e0038"},
    {kWaitDevice, "wait_device", Class::kIdleInStep, "#f48fb1"},
    {kSync, "sync", Class::kIdleInStep, "#8d6e63"},
    {kHost, "host", Class::kIdleInStep, "#d81b60"},
    {kInfer, "infer", Class::kOutsideStep, "#4dd0e1"},
    {kInferWait, "infer_wait", Class::kOutsideStep, "#b0bec5"},
    {kCheckpoint, "checkpoint", Class::kOutsideStep, "#5d4037"},
    {kWaitClient, "wait_client", Class::kOutsideStep, "#cfd8dc"},
    {kNoWork, "no_work", Class::kOutsideStep, "#eceff1"},
    {kPaused, "paused", Class::kOutsideStep, "#90a4ae"},
    {kSetup, "setup", Class::kOutsideStep, "#607d8b"},
}};

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].state != static_cast<StageState>(i)) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

}  // namespace

const std::array<StageStateInfo, kStageStateCount>& StageStates() { return kTable; }

const StageStateInfo& InfoOf(StageState state) {
  const auto row = static_cast<size_t>(state);
  PENSTOCK_CHECK(row < kTable.size());
  return kTable[row];
}

std::optional<StageState> StageStateFromName(std::string_view name) {
  for (const StageStateInfo& info : kTable) {
    if (info.name == name) return info.state;
  }
  return std::nullopt;
}

}  // namespace penstock
