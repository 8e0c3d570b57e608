#pragma once

// The kinds of schedule: the only list of names and generators. A generator is a pure function from sizes to compute
// actions (F, B); passes add the rest.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// What to generate.
//
// Units:     `ranks` are stage workers, each with `chunks` stages: stages = ranks * chunks.
struct ScheduleRequest {
  std::string kind = {};
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;
  std::optional<int> lag = {};         // of kind "lag": how far the weight gradients may stay behind, in micro-batches
  std::optional<int> live_limit = {};  // of kind "auto": micro-batches that a rank may hold; unset: as many as ranks
  ScheduleCosts costs = {};            // of kind "auto": one entry per stage; empty: equal costs
};

// One kind of schedule.
struct ScheduleKind {
  std::string_view name;
  std::string_view summary;  // one line for people
  bool trains;               // false: forward actions only
  Schedule (*generate)(int ranks, int microbatches);
};

// Every kind, in the order in which help texts list them.
const std::vector<ScheduleKind>& ScheduleKinds();

// The kind of that name. INVALID_ARGUMENT / FIELD_INVALID of field `kind`, with the known names, if there is none.
absl::StatusOr<ScheduleKind> FindScheduleKind(std::string_view name);

// The compute actions of a schedule. INVALID_ARGUMENT / FIELD_INVALID of field `kind`, `ranks` or `micro_batches`.
absl::StatusOr<Schedule> Generate(const ScheduleRequest& request);

// The generators themselves. Sizes must be within the limits of schedule.h.

// "gpipe": every forward, then every backward (fill, then drain). Source: Huang et al., "GPipe", 2019, with backward in
// ascending micro-batch order, so that gradients accumulate in the same order in every kind.
Schedule FillDrain(int ranks, int microbatches);

// "1f1b": as few forwards ahead as keep the pipeline busy, then one forward and one backward in turn. Same makespan as
// fill-drain at equal costs; rank r keeps min(m, P-r) activations instead of m. Sources: Harlap et al., "PipeDream",
// 2018; with a flush per step, as here: Narayanan et al., "Efficient large-scale language model training on GPU
// clusters", 2021.
Schedule OneForwardOneBackward(int ranks, int microbatches);

// "forward-only": inference, and the forward half of a graph that is kept.
Schedule ForwardOnly(int ranks, int microbatches);

// Parts of a step that a client calls one by one. They are no kinds of their own: every kind has the same ones.

// The backward half of a graph that an earlier run kept: B of every micro-batch, ascending.
Schedule BackwardOnly(int ranks, int microbatches);

// Empty lists, for the optimizer pass to fill.
Schedule NoMicrobatches(int ranks);

}  // namespace penstock
