#pragma once

// The kinds of action and all that differs between them, in one table. A new kind is a new row.

#include <array>
#include <optional>
#include <string_view>

#include "engine/schedule/virtual_time.h"

namespace penstock {

enum class ActionKind {
  kForward,          // F: activation of this stage from that of the stage before
  kBackward,         // B: both halves below in one
  kInputGradient,    // I: gradient of the stage's input only
  kWeightGradient,   // W: gradient of the stage's parameters only, after its I
  kRecompute,        // R: the forward again, to bring back activations that were not kept
  kSendForward,      // SEND_F: the activation leaves for the stage after
  kReceiveForward,   // RECV_F: the activation arrives from the stage before
  kSendBackward,     // SEND_B: the gradient leaves for the stage before
  kReceiveBackward,  // RECV_B: the gradient arrives from the stage after
  kOptimizer,        // OPT: the optimizer step of the stage; it has no micro-batch
};
inline constexpr int kActionKinds = 10;

// The parts of a training step. A schedule may hold some of them only (SchedulePurpose).
enum class StepPhase { kForward, kBackward, kOptimizer };

// What an action does with its lane.
enum class ActionRole { kCompute, kSend, kReceive };

// One row of the table.
struct ActionKindInfo {
  ActionKind kind = ActionKind::kForward;
  std::string_view text;  // the middle of an action's text
  StepPhase phase = StepPhase::kForward;
  ActionRole role = ActionRole::kCompute;
  IdleCause waits_for = IdleCause::kWaitActivation;  // what a lane lacks that waits before it, its first action apart
  std::optional<ActionKind> reads = {};     // of its own stage and micro-batch: what makes the values that it takes
  std::optional<ActionKind> receives = {};  // what brings it values from other lanes
  Ticks StageCosts::*cost = nullptr;        // none: it costs nothing. A fused B: see CostOf
};

// In the order of ActionKind.
inline constexpr std::array<ActionKindInfo, kActionKinds> kActionKindTable = {{
    {.kind = ActionKind::kForward,
     .text = "F",
     .phase = StepPhase::kForward,
     .waits_for = IdleCause::kWaitActivation,
     .receives = ActionKind::kReceiveForward,
     .cost = &StageCosts::forward},
    {.kind = ActionKind::kBackward,
     .text = "B",
     .phase = StepPhase::kBackward,
     .waits_for = IdleCause::kWaitGradient,
     .reads = ActionKind::kForward,
     .receives = ActionKind::kReceiveBackward},
    {.kind = ActionKind::kInputGradient,
     .text = "I",
     .phase = StepPhase::kBackward,
     .waits_for = IdleCause::kWaitGradient,
     .reads = ActionKind::kForward,
     .receives = ActionKind::kReceiveBackward,
     .cost = &StageCosts::input_gradient},
    {.kind = ActionKind::kWeightGradient,
     .text = "W",
     .phase = StepPhase::kBackward,
     .waits_for = IdleCause::kWaitGradient,
     .reads = ActionKind::kInputGradient,
     .cost = &StageCosts::weight_gradient},
    {.kind = ActionKind::kRecompute,
     .text = "R",
     .phase = StepPhase::kBackward,
     .waits_for = IdleCause::kWaitActivation,
     .reads = ActionKind::kForward,
     .cost = &StageCosts::recompute},
    {.kind = ActionKind::kSendForward,
     .text = "SEND_F",
     .phase = StepPhase::kForward,
     .role = ActionRole::kSend,
     .waits_for = IdleCause::kWaitActivation,
     .reads = ActionKind::kForward},
    {.kind = ActionKind::kReceiveForward,
     .text = "RECV_F",
     .phase = StepPhase::kForward,
     .role = ActionRole::kReceive,
     .waits_for = IdleCause::kWaitActivation},
    {.kind = ActionKind::kSendBackward,
     .text = "SEND_B",
     .phase = StepPhase::kBackward,
     .role = ActionRole::kSend,
     .waits_for = IdleCause::kWaitGradient,
     .reads = ActionKind::kBackward},  // or I, which takes the place of a B
    {.kind = ActionKind::kReceiveBackward,
     .text = "RECV_B",
     .phase = StepPhase::kBackward,
     .role = ActionRole::kReceive,
     .waits_for = IdleCause::kWaitGradient},
    {.kind = ActionKind::kOptimizer,
     .text = "OPT",
     .phase = StepPhase::kOptimizer,
     .waits_for = IdleCause::kWaitBarrier,
     .cost = &StageCosts::optimizer},
}};

constexpr const ActionKindInfo& InfoOf(ActionKind kind) { return kActionKindTable[static_cast<size_t>(kind)]; }

// The middle of an action's text: "F", "SEND_F", "OPT".
constexpr std::string_view KindText(ActionKind kind) { return InfoOf(kind).text; }

// What one action of this kind costs; a fused B without a cost of its own costs both halves.
constexpr Ticks CostOf(ActionKind kind, const StageCosts& costs) {
  if (kind == ActionKind::kBackward) return costs.backward.value_or(costs.input_gradient + costs.weight_gradient);
  const auto member = InfoOf(kind).cost;
  return member == nullptr ? 0 : costs.*member;
}

// B or I: what consumes the gradient from the stage after and produces the one for the stage before.
constexpr bool ConsumesGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGradient;
}

// B or W: what adds to the gradients of parameters, in ascending micro-batch order.
constexpr bool AccumulatesGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kWeightGradient;
}

constexpr bool IsSend(ActionKind kind) { return InfoOf(kind).role == ActionRole::kSend; }
constexpr bool IsReceive(ActionKind kind) { return InfoOf(kind).role == ActionRole::kReceive; }
constexpr bool IsCommunication(ActionKind kind) { return InfoOf(kind).role != ActionRole::kCompute; }

}  // namespace penstock
