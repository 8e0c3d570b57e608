#include "server/drain.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

using SignalPtr = std::shared_ptr<DrainSignal>;

// Saves, and says whether the state is safe; or that the save does not end. After an abort nobody asks for it.
DrainEnd Save(const DrainPlan& plan, const SignalPtr& signal, bool* given_up) {
  const bool for_upgrade = signal->Enter(DrainPhase::kSave);
  const auto cancel = std::make_shared<CancelToken>();
  const auto unemptied = std::make_shared<std::atomic<bool>>(false);
  plan.save({.force = !signal->work_ended(), .empty_journal = for_upgrade}, cancel,
            [signal, unemptied](const LastSaves& saves) {
              if (!saves.failed.empty() && !signal->aborted()) {
                LogError("the state of pipelines is lost", {{"pipelines", absl::StrJoin(saves.failed, ",")}});
              }
              *unemptied = !saves.unemptied.empty();
              signal->SaveEnded(saves.failed.empty());
            });
  signal->AwaitSave(plan.checkpoint);
  if (!signal->save_ended()) {
    cancel->Cancel();
    if (signal->aborted()) signal->AwaitSaveOrHurry();
  }
  if (!signal->save_ended()) {
    *given_up = true;
    LogWarning("giving up the checkpoint",
               {{"after", signal->hurried() ? "a second signal" : absl::FormatDuration(plan.checkpoint)}});
    signal->AwaitSaveInAnyCase(plan.close);
  }
  if (!signal->save_ended()) return DrainEnd::kHangs;
  if (!signal->saved()) return DrainEnd::kStateLost;
  return *unemptied ? DrainEnd::kUnemptied : DrainEnd::kWhole;
}

// Waits until no call has come in for a moment: a caller fetches its last results, and one that comes too late is
// refused by name, which a closing listener can't do.
void AwaitQuiet(const DrainPlan& plan, const SignalPtr& signal) {
  constexpr absl::Duration kMoment = absl::Milliseconds(250);
  int64_t seen = -1;
  for (absl::Duration waited; waited < plan.close && !signal->hurried(); waited += kMoment) {
    const int64_t started = plan.calls_started();
    if (started == seen) return;
    seen = started;
    signal->AwaitTime(kMoment);
  }
}

}  // namespace

DrainEnd RunDrain(const DrainPlan& plan, const SignalPtr& signal) {
  DrainEnd end = DrainEnd::kWhole;
  bool given_up = false;  // the save: callers have had the time to fetch
  const auto goes_on = [&signal] { return !signal->hurried() && !signal->aborted(); };
  plan.lifecycle->Advance(LifecycleState::kAnnouncing);
  signal->AwaitTime(plan.announce);
  if (goes_on()) {
    plan.lifecycle->Advance(LifecycleState::kRefusing);
    signal->Enter(DrainPhase::kFinish);
    plan.finish_work([signal] { signal->WorkEnded(); });
    signal->AwaitWork(plan.finish);
    // What has not run is cancelled from now on, and a pipeline can't go on without it.
    if (!signal->work_ended() && signal->MakeFinal()) {
      LogWarning("closing with unfinished work");
      end = DrainEnd::kCutShort;
    }
  }
  if (goes_on() && plan.checkpoint > absl::ZeroDuration()) {
    const DrainEnd saved = Save(plan, signal, &given_up);
    if (saved == DrainEnd::kHangs) return saved;
    if (saved != DrainEnd::kWhole) end = saved;
  }
  if (!signal->MakeFinal()) {
    plan.resume();
    plan.lifecycle->Advance(LifecycleState::kReady);
    return DrainEnd::kAborted;
  }
  signal->Enter(DrainPhase::kClose);
  if (!given_up) AwaitQuiet(plan, signal);
  plan.close_all(signal->hurried() ? absl::ZeroDuration() : plan.close);
  return signal->hurried() ? DrainEnd::kCutShort : end;
}

}  // namespace penstock
