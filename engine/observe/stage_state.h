#pragma once

// Everything that a lane can be doing or waiting for: one table with name, class and colour, for metrics, pages and
// pictures.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {

// What a lane (one stage worker of one pipeline on one device) is doing at an instant; it is in exactly one state.
enum class StageState : uint8_t {
  // Work, inside a step.
  kForward,         // running a forward action, loss included
  kBackward,        // running a fused backward: input and weight gradients
  kBackwardInput,   // running the input-gradient half
  kBackwardWeight,  // running the weight-gradient half
  kRecompute,       // recomputing a checkpointed forward
  kOptimizer,       // clipping, updating, zeroing gradients
  // Filled.
  kFilled,  // running an inference micro-batch in a gap of a step
  // Idle, inside a step.
  kSend,            // held by an outgoing copy or encoding
  kReceive,         // held by copying or decoding data that has arrived
  kFill,            // waiting for its first input; it has run no action of this step
  kDrain,           // done with its actions; another lane is not
  kWaitActivation,  // waiting for an activation from upstream, after its first action
  kWaitGradient,    // waiting for a gradient from downstream
  kBlocked,         // waiting for credit or buffer space at the receiver
  kWaitDevice,      // ready, but the device runs an action of another lane
  kSync,            // in a barrier or collective
  kHost,            // ready, device free, but the action has not begun
  // Outside a step.
  kInfer,       // running inference, its lane-held copies included
  kInferWait,   // idle while an inference run is open
  kCheckpoint,  // copying state for a save, or restoring it
  kWaitClient,  // idle; a kept graph or accumulated gradients wait for the client's next call
  kNoWork,      // idle; nothing has been accepted
  kPaused,      // idle; stopped by an operator, or draining for shutdown
  kSetup,       // loading weights, connecting; the first state
};
inline constexpr int kStageStateCount = 24;

// How a state counts in bubbles.
enum class StateClass : uint8_t {
  kWork,
  kFilled,
  kIdleInStep,
  kOutsideStep,
};

// One row of the table.
struct StageStateInfo {
  StageState state;
  std::string_view name;  // the label value
  StateClass state_class;
  std::string_view colour;  // "#rrggbb"
};

// All states, in the order of the enum.
const std::array<StageStateInfo, kStageStateCount>& StageStates();

const StageStateInfo& InfoOf(StageState state);
inline std::string_view NameOf(StageState state) { return InfoOf(state).name; }

// The state of a name, or nothing.
std::optional<StageState> StageStateFromName(std::string_view name);

// Work, filled and idle states are inside a step.
inline bool IsInStep(StageState state) { return InfoOf(state).state_class != StateClass::kOutsideStep; }

}  // namespace penstock
