#include "server/drain.h"

#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

// Saves, and says whether the state is safe; or that the save does not end.
DrainEnd Save(const DrainPlan& plan, DrainSignal* signal, bool* given_up) {
  const auto cancel = std::make_shared<CancelToken>();
  plan.save(cancel, [signal](const LastSaves& saves) {
    if (!saves.failed.empty()) {
      LogError("the state of pipelines is lost", {{"pipelines", absl::StrJoin(saves.failed, ",")}});
    }
    signal->SaveEnded(saves.failed.empty());
  });
  signal->AwaitSave(plan.checkpoint);
  if (!signal->save_ended()) {
    *given_up = true;
    LogWarning("giving up the checkpoint",
               {{"after", signal->hurried() ? "a second signal" : absl::FormatDuration(plan.checkpoint)}});
    cancel->Cancel();
    signal->AwaitSaveInAnyCase(plan.close);
  }
  if (!signal->save_ended()) return DrainEnd::kHangs;
  return signal->saved() ? DrainEnd::kWhole : DrainEnd::kStateLost;
}

// Waits until no call has come in for a moment: a caller fetches its last results, and one that comes too late is
// refused by name, which a closing listener can't do.
void AwaitQuiet(const DrainPlan& plan, DrainSignal* signal) {
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

DrainEnd RunDrain(const DrainPlan& plan, DrainSignal* signal) {
  DrainEnd end = DrainEnd::kWhole;
  bool given_up = false;  // the save: callers have had the time to fetch
  plan.lifecycle->Advance(LifecycleState::kAnnouncing);
  signal->AwaitTime(plan.announce);
  if (!signal->hurried()) {
    plan.lifecycle->Advance(LifecycleState::kRefusing);
    plan.finish_work([signal] { signal->WorkEnded(); });
    signal->AwaitWork(plan.finish);
    if (!signal->work_ended()) {
      LogWarning("closing with unfinished work");
      end = DrainEnd::kCutShort;
    }
  }
  if (!signal->hurried() && plan.checkpoint > absl::ZeroDuration()) {
    const DrainEnd saved = Save(plan, signal, &given_up);
    if (saved == DrainEnd::kHangs) return saved;
    if (saved != DrainEnd::kWhole) end = saved;
  }
  if (!given_up) AwaitQuiet(plan, signal);
  plan.close_all(signal->hurried() ? absl::ZeroDuration() : plan.close);
  return signal->hurried() ? DrainEnd::kCutShort : end;
}

}  // namespace penstock
