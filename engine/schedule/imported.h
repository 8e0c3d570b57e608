#pragma once

// Schedules from outside: a training step written by hand, by a search or by PyTorch, checked and made ready to run.

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/schedule/placement.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// The name of a schedule from a file, in the place of its kind.
inline constexpr std::string_view kImportedKind = "imported";

// The lists that take a generator's place.
struct ImportedSchedule {
  Schedule actions;  // F, B, I and W of a contribution, verified; of kind kImportedKind
  Placement placement = Placement::kLooped;
  int chunks = 1;  // stages per lane
};

// Reads what ReadSchedule (torch_csv.h) reads. It must verify as it is. Sends, receives and optimizer steps are taken
// out: the passes put in their own, which are those of the model's skips too.
//
// Fails:     FIELD_INVALID as ReadSchedule; SPEC_INVALID as Verify, and, with the action or the lane as value,
//            - where a forward or a backward is missing altogether, as in inference;
//            - for R: the checkpoint mode says what is recomputed;
//            - where forwards of a stage don't ascend: running statistics of batch norm would follow their order;
//            - where lanes have unequal numbers of stages, or stages stand as no Placement puts them.
absl::StatusOr<ImportedSchedule> ImportSchedule(std::string_view text);

// The same lists without the micro-batches from number `micro_batches` on: for a mini-batch that has rows for no more.
// What is valid stays so, for what remains of a stage's list is in the same order.
Schedule FirstMicroBatches(const Schedule& actions, int micro_batches);

}  // namespace penstock
