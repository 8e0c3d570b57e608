#pragma once

// Virtual time: its unit, what the actions of a schedule cost in it, and why a lane does nothing.

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace penstock {

// Virtual time is integral: sums are exact and equal on every machine. A caller with measured costs may let one tick be
// one nanosecond; costs in abstract units are multiplied by kTicksPerUnit, which 2, 3 and 4 divide.
using Ticks = int64_t;
inline constexpr Ticks kTicksPerUnit = 12'000;
inline constexpr Ticks kMaxCost = 1'000'000'000'000;  // of one action or hop: no sum overflows within kMaxCells

// What the actions of one stage cost.
struct StageCosts {
  Ticks forward = kTicksPerUnit;
  Ticks input_gradient = kTicksPerUnit;
  Ticks weight_gradient = kTicksPerUnit;
  Ticks recompute = kTicksPerUnit;
  Ticks optimizer = 0;
  std::optional<Ticks> backward = {};  // of a fused B; unset: input_gradient + weight_gradient
};

// What a message between two stages takes on a link between processes.
struct EdgeCosts {
  Ticks transfer = 0;  // of its bytes: one message after the other, each way
  Ticks latency = 0;   // after that; it keeps no other message waiting

  bool operator==(const EdgeCosts&) const = default;
};

struct ScheduleCosts {
  std::vector<StageCosts> stages;  // one per stage
  Ticks hop = 0;                   // from the end of an action until its result is on the neighbouring lane
  // By stages (lower, higher), where a link lies between them; it adds to the hop, in both directions alike.
  std::map<std::pair<int, int>, EdgeCosts> edges = {};

  // true: no OPT starts before the last B or W of all lanes has ended, as gradient clipping needs it.
  bool optimizer_barrier = false;

  // Null: no link.
  const EdgeCosts* EdgeBetween(int stage, int other) const;
  // Of one message alone, between stages of different lanes.
  Ticks HopBetween(int stage, int other) const;
};

// INVALID_ARGUMENT / FIELD_INVALID of `costs` or `costs.forward` and the like unless there is one entry per stage and
// every cost is 0 to kMaxCost; of `costs.edges` where they are not between two of the stages.
absl::Status CheckCosts(const ScheduleCosts& costs, int stages);

// Why a lane did nothing; the names of the stage states that the daemon measures.
enum class IdleCause {
  kFill,            // before its first action
  kWaitActivation,  // for an activation, after its first action
  kWaitGradient,
  kWaitBarrier,  // before OPT, for other lanes
  kDrain,        // after its last action
};

}  // namespace penstock
