#include "engine/schedule/verify.h"

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/dependencies.h"
#include "engine/schedule/failure.h"
#include "engine/schedule/matching.h"
#include "engine/schedule/skips.h"

namespace penstock {
namespace {

// In the order of SchedulePurpose.
constexpr std::array<std::string_view, 5> kPurposeTexts = {"training step", "contribution", "forward only",
                                                           "backward only", "optimizer only"};

bool Includes(SchedulePurpose purpose, StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward:
      return purpose == SchedulePurpose::kTrainingStep || purpose == SchedulePurpose::kContribution ||
             purpose == SchedulePurpose::kForwardOnly;
    case StepPhase::kBackward:
      return purpose == SchedulePurpose::kTrainingStep || purpose == SchedulePurpose::kContribution ||
             purpose == SchedulePurpose::kBackwardOnly;
    case StepPhase::kOptimizer:
      return purpose == SchedulePurpose::kTrainingStep || purpose == SchedulePurpose::kOptimizerOnly;
  }
  return false;
}

// The invariants over one schedule, one method each. Each returns the first failure.
class Verifier {
 public:
  Verifier(const Schedule& schedule, const VerifyOptions& options, const std::vector<SkipEdge>& skips)
      : schedule_(schedule),
        options_(options),
        skips_(skips),
        index_(schedule),
        lane_of_(LaneOfEachStage(schedule)),
        crossing_(skips, lane_of_) {}

  absl::Status CheckContent() const;
  absl::Status CheckPlacement() const;
  absl::Status CheckCompleteness() const;
  absl::Status CheckOrder() const;
  absl::Status CheckMatching() const;
  absl::Status CheckDeadlock() const;
  absl::Status CheckPeak(const PeakActivations& peaks) const;

 private:
  // Calls check(place, action) for every cell until one fails.
  template <typename Check>
  absl::Status ForEachCell(const Check& check) const;

  absl::Status CheckCell(const Place& place, const Action& action) const;
  absl::Status CheckBackwardComplete(int stage, int micro_batch) const;
  absl::Status CheckOwnOrder(const Place& place, const Action& action) const;

  bool Has(StepPhase phase) const { return Includes(options_.purpose, phase); }
  ActionKind KindAt(const Place& place) const { return schedule_.lanes[place.lane][place.position].kind; }
  absl::Status Fail(std::string_view invariant, const Place& place, const Action& action, std::string_view cause,
                    std::vector<Place> related = {}) const {
    return ScheduleFailure(schedule_, invariant, place, action, cause,
                           {.culprits = {place}, .others = std::move(related)});
  }
  // An action that should stand on the list of its stage's lane: shown just past the end.
  absl::Status Missing(std::string_view invariant, const Action& action, std::string_view cause,
                       std::vector<Place> related = {}) const {
    const int lane = lane_of_[action.stage];
    return Fail(invariant, {lane, static_cast<int>(schedule_.lanes[lane].size())}, action, cause, std::move(related));
  }

  const Schedule& schedule_;
  const VerifyOptions& options_;
  const std::vector<SkipEdge>& skips_;
  const ActionIndex index_;
  const std::vector<int> lane_of_;
  const CrossingSkips crossing_;
};

template <typename Check>
absl::Status Verifier::ForEachCell(const Check& check) const {
  for (size_t lane = 0; lane < schedule_.lanes.size(); ++lane) {
    for (size_t position = 0; position < schedule_.lanes[lane].size(); ++position) {
      PENSTOCK_RETURN_IF_ERROR(
          check(Place{static_cast<int>(lane), static_cast<int>(position)}, schedule_.lanes[lane][position]));
    }
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckContent() const {
  return ForEachCell([this](const Place& place, const Action& action) { return CheckCell(place, action); });
}

absl::Status Verifier::CheckCell(const Place& place, const Action& action) const {
  const bool wanted = options_.with_communication || !IsCommunication(action.kind);
  if (wanted && Has(InfoOf(action.kind).phase)) return absl::OkStatus();
  const std::string_view purpose = ToString(options_.purpose);
  return Fail("content", place, action,
              absl::StrCat(ToString(action),
                           " has no place in a schedule for: ", absl::string_view(purpose.data(), purpose.size()),
                           options_.with_communication ? "" : ", compute actions only"));
}

absl::Status Verifier::CheckPlacement() const {
  std::vector<Place> first(schedule_.stages, Place{.lane = -1});
  PENSTOCK_RETURN_IF_ERROR(ForEachCell([&](const Place& place, const Action& action) {
    Place& seen = first[action.stage];
    if (seen.lane < 0) seen = place;
    if (seen.lane == place.lane) return absl::OkStatus();
    return Fail("placement", place, action, absl::StrCat("stage ", action.stage, " is already on lane ", seen.lane),
                {seen});
  }));
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    if (first[stage].lane >= 0) continue;
    const ActionKind kind = Has(StepPhase::kForward)    ? ActionKind::kForward
                            : Has(StepPhase::kBackward) ? ActionKind::kBackward
                                                        : ActionKind::kOptimizer;
    return ScheduleFailure(schedule_, "placement", {.lane = -1, .position = -1}, {kind, stage, 0},
                           absl::StrCat("stage ", stage, " is on no lane"));
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckCompleteness() const {
  PENSTOCK_RETURN_IF_ERROR(ForEachCell([&](const Place& place, const Action& action) {
    const Place last = *index_.Find(action);
    if (last == place) return absl::OkStatus();
    const Action& again = schedule_.lanes[last.lane][last.position];
    return Fail("completeness", last, again,
                absl::StrCat(ToString(again), again == action ? " occurs twice" : " repeats the work of ",
                             again == action ? "" : ToString(action)),
                {place});
  }));
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      const Action forward{ActionKind::kForward, stage, i};
      if (Has(StepPhase::kForward) && !index_.Find(forward)) {
        return Missing("completeness", forward, absl::StrCat(ToString(forward), " is missing"));
      }
      if (Has(StepPhase::kBackward)) PENSTOCK_RETURN_IF_ERROR(CheckBackwardComplete(stage, i));
    }
    const Action optimizer{ActionKind::kOptimizer, stage, 0};
    if (Has(StepPhase::kOptimizer) && !index_.Find(optimizer)) {
      return Missing("completeness", optimizer, absl::StrCat(ToString(optimizer), " is missing"));
    }
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckBackwardComplete(int stage, int micro_batch) const {
  const Action weight{ActionKind::kWeightGradient, stage, micro_batch};
  const std::optional<Place> weight_at = index_.Find(weight);
  const std::optional<Place> gradient_at = index_.Find({ActionKind::kBackward, stage, micro_batch});  // B or I
  if (!gradient_at) {
    const Action missing{weight_at ? ActionKind::kInputGradient : ActionKind::kBackward, stage, micro_batch};
    return Missing(
        "completeness", missing,
        absl::StrCat(ToString(missing), " is missing: stage ", stage, " has no gradient of micro-batch ", micro_batch));
  }
  const bool split = KindAt(*gradient_at) == ActionKind::kInputGradient;
  if (split && !weight_at) {
    return Missing("completeness", weight,
                   absl::StrCat(ToString(weight),
                                " is missing: ", ToString(schedule_.lanes[gradient_at->lane][gradient_at->position]),
                                " leaves it to do"),
                   {*gradient_at});
  }
  if (!split && weight_at) {
    return Fail("completeness", *weight_at, weight,
                absl::StrCat(ToString(weight), " repeats the work of ",
                             ToString(schedule_.lanes[gradient_at->lane][gradient_at->position])),
                {*gradient_at});
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckOrder() const {
  std::vector<std::optional<Place>> accumulated(schedule_.stages);  // the last B or W so far
  return ForEachCell([&](const Place& place, const Action& action) {
    PENSTOCK_RETURN_IF_ERROR(CheckOwnOrder(place, action));
    const std::optional<Place> optimizer = index_.Find({ActionKind::kOptimizer, action.stage, 0});
    if (optimizer && optimizer->position < place.position) {
      return Fail("order", place, action, absl::StrCat(ToString(action), " follows the optimizer step of its stage"),
                  {*optimizer});
    }
    if (!AccumulatesGradient(action.kind)) return absl::OkStatus();
    std::optional<Place>& last = accumulated[action.stage];
    if (last) {
      const Action& before = schedule_.lanes[last->lane][last->position];
      if (before.micro_batch > action.micro_batch) {
        return Fail("order", place, action,
                    absl::StrCat("gradients must accumulate in ascending micro-batch order: ", ToString(action),
                                 " follows ", ToString(before)),
                    {*last});
      }
    }
    last = place;
    return absl::OkStatus();
  });
}

// What an action reads on its own stage must stand before it: F, then R, then B or I, then W; receives before their
// consumers, sends after their producers.
absl::Status Verifier::CheckOwnOrder(const Place& place, const Action& action) const {
  const ActionKindInfo& info = InfoOf(action.kind);
  std::vector<Action> before;
  const auto add = [&](ActionKind kind, int peer = -1) {
    before.push_back({kind, action.stage, action.micro_batch, peer});
  };
  if (info.reads) add(*info.reads);
  if (ConsumesGradient(action.kind)) add(ActionKind::kRecompute);
  if (info.receives) {
    add(*info.receives);
    const bool forward = info.phase == StepPhase::kForward;
    const auto& peers = forward ? crossing_.SourcesOf(action.stage) : crossing_.DestinationsOf(action.stage);
    for (const int peer : peers) add(*info.receives, peer);
  }
  for (const Action& earlier : before) {
    const std::optional<Place> needed = index_.Find(earlier);
    if (!needed || needed->position < place.position) continue;
    return Fail(
        "order", place, action,
        absl::StrCat(ToString(action), " stands before ", ToString(schedule_.lanes[needed->lane][needed->position])),
        {*needed});
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckMatching() const {
  return CheckMessages(schedule_, index_, skips_,
                       {.forward = Has(StepPhase::kForward), .backward = Has(StepPhase::kBackward)});
}

absl::Status Verifier::CheckDeadlock() const {
  const Dependencies dependencies(schedule_, options_.with_communication, options_.credits);
  const ListWalk walk = WalkLists(schedule_, dependencies);
  return walk.finished ? absl::OkStatus() : ExplainStuck(schedule_, dependencies, walk);
}

absl::Status Verifier::CheckPeak(const PeakActivations& peaks) const {
  if (!options_.max_live_activations) return absl::OkStatus();
  for (int lane = 0; lane < static_cast<int>(schedule_.lanes.size()); ++lane) {
    if (peaks.FullUnits(lane) <= *options_.max_live_activations) continue;
    const Place at = peaks.full_at[lane];
    return Fail("peak", at, schedule_.lanes[at.lane][at.position],
                absl::StrCat("lane ", lane, " holds ", peaks.FullUnits(lane),
                             " activations at once, above the limit of ", *options_.max_live_activations));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view ToString(SchedulePurpose purpose) { return kPurposeTexts[static_cast<size_t>(purpose)]; }

VerifyOptions ImpliedOptions(const Schedule& schedule) {
  bool forward = false, backward = false, optimizer = false;
  for (const auto& list : schedule.lanes) {
    for (const Action& action : list) {
      forward = forward || action.kind == ActionKind::kForward;
      backward = backward || ConsumesGradient(action.kind) || action.kind == ActionKind::kWeightGradient;
      optimizer = optimizer || action.kind == ActionKind::kOptimizer;
    }
  }
  VerifyOptions options;
  options.with_communication = HasCommunication(schedule);
  if (optimizer) {
    options.purpose = forward || backward ? SchedulePurpose::kTrainingStep : SchedulePurpose::kOptimizerOnly;
  } else if (backward) {
    options.purpose = forward ? SchedulePurpose::kContribution : SchedulePurpose::kBackwardOnly;
  } else {
    options.purpose = SchedulePurpose::kForwardOnly;
  }
  return options;
}

absl::StatusOr<PeakActivations> Verify(const Schedule& schedule, const VerifyOptions& options,
                                       const std::vector<SkipEdge>& skips) {
  PENSTOCK_RETURN_IF_ERROR(CheckShape(schedule));
  if (options.purpose != SchedulePurpose::kOptimizerOnly && schedule.micro_batches == 0) {
    return CheckSizes(static_cast<int>(schedule.lanes.size()), schedule.stages, 0);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSkips(skips, schedule.stages, schedule.micro_batches));
  const Verifier verifier(schedule, options, skips);
  PENSTOCK_RETURN_IF_ERROR(verifier.CheckContent());
  PENSTOCK_RETURN_IF_ERROR(verifier.CheckPlacement());
  PENSTOCK_RETURN_IF_ERROR(verifier.CheckCompleteness());
  PENSTOCK_RETURN_IF_ERROR(verifier.CheckOrder());
  if (options.with_communication) PENSTOCK_RETURN_IF_ERROR(verifier.CheckMatching());
  PENSTOCK_RETURN_IF_ERROR(verifier.CheckDeadlock());
  PeakActivations peaks = ComputePeaks(schedule);
  PENSTOCK_RETURN_IF_ERROR(verifier.CheckPeak(peaks));
  return peaks;
}

}  // namespace penstock
