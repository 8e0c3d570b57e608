#pragma once

// Proves that a schedule can be run and gives the right result, before anything runs.

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/peak.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// What a run is for, and so what its lists must hold per stage and micro-batch.
enum class SchedulePurpose {
  kTrainingStep,   // F and backward; then one OPT per stage
  kContribution,   // F and backward; gradients stay for a later optimizer step
  kForwardOnly,    // F and nothing else: inference, or the forward of a graph that is kept
  kBackwardOnly,   // backward, R where needed: the second half of a kept graph
  kOptimizerOnly,  // one OPT per stage
};

std::string_view ToString(SchedulePurpose purpose);

struct VerifyOptions {
  SchedulePurpose purpose = SchedulePurpose::kTrainingStep;

  // true: the lists hold every send and receive, as a stage worker needs them. false: compute actions only.
  bool with_communication = true;

  // Messages that may wait unread on one directed edge before its sender is held. 0: no bound.
  int credits = 0;

  // The most full activations of any lane at one time, in u (micro-batches of a whole lane). Unset: no limit.
  std::optional<double> max_live_activations = std::nullopt;
};

// What lists without an owner look like: the purpose that their actions serve, with communication if they hold any, no
// bound on credits or activations.
VerifyOptions ImpliedOptions(const Schedule& schedule);

// Checks, in this order: sizes; which kinds of action may occur; placement (each stage on one lane); completeness
// (nothing missing, nothing twice); order within a stage (F, R, B or I, W; receives before use, sends after; B and W
// ascending; OPT last); matching (each edge between lanes, neighbours' or skip, has its messages once at both ends,
// and there are no others); freedom from deadlock, also with the given credits; the peak of live activations. Buffer
// lifetimes follow: with these, every read comes after its one write and before its one release.
//
// `skips` are the model's, in any order; lists without communication imply them by the chain of stages.
//
// Returns the peaks.
// Fails:     INVALID_ARGUMENT / FIELD_INVALID of `skips` (CheckSkips of skips.h).
//            INVALID_ARGUMENT / SPEC_INVALID with values `invariant`, `lane`, `position`, `action`. The message says
//            the invariant, the place, the cause, then shows the grid with the cells concerned marked:
//              schedule: deadlock at lane 1, position 1 (1B0)
//                1B0 waits for 2B0; 2B0 follows 2F1 on lane 2; ...
//              pos  lane 0  lane 1   lane 2
//            Only the first failure is reported. Large grids are cut to the rows and lanes around the marks.
absl::StatusOr<PeakActivations> Verify(const Schedule& schedule, const VerifyOptions& options,
                                       const std::vector<SkipEdge>& skips = {});

}  // namespace penstock
