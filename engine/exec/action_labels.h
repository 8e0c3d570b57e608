#pragma once

// Names of each kind of action in a lane's trace, states and phases.

#include <array>

#include "engine/observe/metric_labels.h"
#include "engine/observe/stage_state.h"
#include "engine/observe/trace_ring.h"
#include "engine/schedule/action_kind.h"

namespace penstock {

// One row beside that of ActionKindInfo. In inference every action counts as StageState::kInfer and Phase::kInfer;
// sends and receives have no phase of their own, and the state is that of the lane while they move values.
struct ActionLabels {
  ActionKind kind = ActionKind::kForward;
  TraceKind trace = TraceKind::kForward;
  StageState state = StageState::kForward;
  Phase phase = Phase::kForward;
};

// In the order of ActionKind.
inline constexpr std::array<ActionLabels, kActionKinds> kActionLabels = {{
    {ActionKind::kForward, TraceKind::kForward, StageState::kForward, Phase::kForward},
    {ActionKind::kBackward, TraceKind::kBackward, StageState::kBackward, Phase::kBackward},
    {ActionKind::kInputGradient, TraceKind::kBackwardInput, StageState::kBackwardInput, Phase::kBackwardInput},
    {ActionKind::kWeightGradient, TraceKind::kBackwardWeight, StageState::kBackwardWeight, Phase::kBackwardWeight},
    {ActionKind::kRecompute, TraceKind::kRecompute, StageState::kRecompute, Phase::kRecompute},
    {ActionKind::kSendForward, TraceKind::kSendActivation, StageState::kSend, Phase::kForward},
    {ActionKind::kReceiveForward, TraceKind::kReceiveActivation, StageState::kReceive, Phase::kForward},
    {ActionKind::kSendBackward, TraceKind::kSendGradient, StageState::kSend, Phase::kBackward},
    {ActionKind::kReceiveBackward, TraceKind::kReceiveGradient, StageState::kReceive, Phase::kBackward},
    {ActionKind::kOptimizer, TraceKind::kOptimizer, StageState::kOptimizer, Phase::kOptimizer},
}};

constexpr const ActionLabels& LabelsOf(ActionKind kind) { return kActionLabels[static_cast<size_t>(kind)]; }

}  // namespace penstock
