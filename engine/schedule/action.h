#pragma once

// One thing that a stage does with one micro-batch, and its text: `2F0`, `3SEND_F1`, `2R0`, `2OPT`, `2SEND_F0@5`.

#include <compare>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/schedule/action_kind.h"

namespace penstock {

// One cell of a schedule.
//
// Model:     the stage is the one that acts: a send names the sender, a receive the receiver. So `3SEND_F1` matches
//            `4RECV_F1`, and `4SEND_B1` matches `3RECV_B1`.
//            Communication that carries skip values names the stage at the other end: `2SEND_F0@5` matches
//            `5RECV_F0@2`, and their gradients return by `5SEND_B0@2` and `2RECV_B0@5`.
// Units:     stages in model order from 0; micro-batches of this run from 0. kOptimizer has micro-batch 0. `peer` is -1
//            where the other end is the neighbour.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = 0;
  int peer = -1;

  auto operator<=>(const Action&) const = default;

  template <typename H>
  friend H AbslHashValue(H state, const Action& action) {
    return H::combine(std::move(state), action.kind, action.stage, action.micro_batch, action.peer);
  }
};

// `<stage><KIND><micro-batch>`, then `@<peer>` if there is one; no micro-batch for OPT.
std::string ToString(const Action& action);

// The inverse of ToString. INVALID_ARGUMENT / FIELD_INVALID, with the text, for anything that ToString does not write,
// and for a peer of what is neither a send nor a receive.
absl::StatusOr<Action> ParseAction(std::string_view text);

inline std::ostream& operator<<(std::ostream& out, const Action& action) { return out << ToString(action); }

}  // namespace penstock
