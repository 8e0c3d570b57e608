#pragma once

// Places recomputation: R directly before the B or I that needs its activations. R depends on the forward only, so a
// lane that would wait for the gradient recomputes meanwhile.
// Sources: Chen et al., "Training deep nets with sublinear memory cost", 2016; per micro-batch: Huang et al., 2019.

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"

namespace penstock {

enum class RecomputeMode {
  kNever,
  kExceptLast,  // the last micro-batch of the run keeps its activations
  kAlways,
  kSkipAdjacent,  // always, except where F is directly followed by its own backward on the same lane
};

// "never", "except_last", "always", "skip_adjacent".
std::string_view ToString(RecomputeMode mode);

// The inverse; '-' and ' ' count as '_'. INVALID_ARGUMENT / FIELD_INVALID of field `recompute`, with the known names.
absl::StatusOr<RecomputeMode> ParseRecomputeMode(std::string_view text);

// Adds R actions to a schedule of compute actions; runs before the communication pass. Forward-only lists stay as they
// are: inference recomputes nothing.
Schedule InsertRecompute(Schedule schedule, RecomputeMode mode);

}  // namespace penstock
