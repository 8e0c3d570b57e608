#include "server/drain_calls.h"

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

v1::DrainPhase MessageOf(DrainPhase phase) {
  switch (phase) {
    case DrainPhase::kAnnounce:
      return v1::DRAIN_PHASE_ANNOUNCE;
    case DrainPhase::kFinish:
      return v1::DRAIN_PHASE_FINISH;
    case DrainPhase::kSave:
      return v1::DRAIN_PHASE_SAVE;
    case DrainPhase::kClose:
      break;
  }
  return v1::DRAIN_PHASE_CLOSE;
}

absl::Status CheckUpgrade(const DrainFacts& facts) {
  if (facts.starting) {
    return Error(absl::StatusCode::kUnavailable, "STARTING",
                 "the daemon makes the calls of its journals again: they can be emptied afterwards");
  }
  if (!facts.saves) {
    return Error(absl::StatusCode::kFailedPrecondition, "FEATURE_DISABLED",
                 "--drain-checkpoint=0s leaves no time to empty the journals");
  }
  return facts.check_journals();
}

}  // namespace

absl::StatusOr<v1::DrainState> ServeDrain(const v1::DrainRequest& request, const DrainFacts& facts,
                                          DrainControl* control) {
  if (request.abort() && request.for_upgrade()) {
    return InvalidField("for_upgrade", "must be false with abort", "true");
  }
  if (request.abort()) {
    PENSTOCK_RETURN_IF_ERROR(control->Abort());
    return DescribeDrain(*control, facts);
  }
  const auto asked = control->asked();
  if (request.for_upgrade() && !(asked.has_value() && asked->signal->view().for_upgrade)) {
    PENSTOCK_RETURN_IF_ERROR(CheckUpgrade(facts));
  }
  PENSTOCK_RETURN_IF_ERROR(control->Ask({.for_upgrade = request.for_upgrade(), .final = facts.starting}));
  return DescribeDrain(*control, facts);
}

v1::DrainState DescribeDrain(const DrainControl& control, const DrainFacts& facts) {
  v1::DrainState state;
  const auto asked = control.asked();
  if (!asked.has_value() || asked->signal->aborted()) return state;
  const DrainSignal::View view = asked->signal->view();
  state.set_phase(facts.starting ? v1::DRAIN_PHASE_CLOSE : MessageOf(view.phase));
  state.set_for_upgrade(view.for_upgrade);
  state.set_final(view.final);
  state.set_calls_left(facts.calls_left);
  const absl::Time deadline = asked->since + (facts.starting ? absl::ZeroDuration() : facts.longest);
  *state.mutable_deadline() = ToTimestamp(deadline);
  return state;
}

}  // namespace penstock
