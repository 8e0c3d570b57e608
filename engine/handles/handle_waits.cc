// The waits of a HandleStore: a callback when handles settle or a deadline passes.

#include <limits>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_entry.h"
#include "engine/handles/handle_store.h"

namespace penstock {

HandleStore::WaitId HandleStore::OnSettled(const std::string& caller, std::vector<HandleName> names, WaitMode mode,
                                           int64_t deadline_nanos, SettledCallback callback) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  const WaitId id = ++last_wait_;
  Wait& wait = waits_[id];
  absl::Cleanup undo = [&] {  // where there is no memory, there is no wait
    for (const EntryPointer& entry : wait.pending) entry->waits.erase(id);
    mu_.AssertHeld();
    waits_.erase(id);
  };
  wait.caller = caller;
  wait.callback = std::move(callback);
  bool settled = names.empty() || closed_ || deadline_nanos <= clock_->NowNanos();
  for (const HandleName& name : names) {
    absl::StatusOr<EntryPointer> entry = Find(caller, name, aftermath);
    if (entry.ok() && (*entry)->state == HandleState::kPending) {
      wait.pending.insert(*entry);
    } else if (mode == WaitMode::kAny) {
      settled = true;
    }
  }
  wait.names = std::move(names);
  wait.mode = mode;
  for (const EntryPointer& entry : wait.pending) entry->waits.insert(id);
  if (settled || wait.pending.empty()) {
    std::move(undo).Cancel();
    FinishWait(id, aftermath);
    return 0;
  }
  if (deadline_nanos != std::numeric_limits<int64_t>::max()) {
    wait.timer = timers_->Add(deadline_nanos, [this, id] { OnDeadline(id); });
  }
  std::move(undo).Cancel();
  return id;
}

bool HandleStore::CancelWait(WaitId id) {
  std::map<WaitId, Wait>::node_type cancelled;  // destroyed outside of the lock
  absl::MutexLock lock(&mu_);
  cancelled = waits_.extract(id);
  if (cancelled.empty()) return false;
  for (const EntryPointer& entry : cancelled.mapped().pending) entry->waits.erase(id);
  timers_->Remove(cancelled.mapped().timer);
  return true;
}

void HandleStore::OnDeadline(WaitId id) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  if (waits_.count(id) != 0) FinishWait(id, aftermath);
}

void HandleStore::WakeWaits(HandleEntry& entry, Aftermath& aftermath) {
  std::set<WaitId> waits;
  waits.swap(entry.waits);
  for (const WaitId id : waits) {
    auto found = waits_.find(id);
    if (found == waits_.end()) continue;
    Wait& wait = found->second;
    std::erase_if(wait.pending, [&](const EntryPointer& other) { return other.get() == &entry; });
    if (wait.mode == WaitMode::kAny || wait.pending.empty()) FinishWait(id, aftermath);
  }
}

void HandleStore::FinishWait(WaitId id, Aftermath& aftermath) {
  // Out of the map first: Answer() may end an entry, which wakes the waits that are still in it.
  auto node = waits_.extract(id);
  PENSTOCK_CHECK(!node.empty());
  Wait& wait = node.mapped();
  for (const EntryPointer& entry : wait.pending) entry->waits.erase(id);
  timers_->Remove(wait.timer);
  MakeAnswers(wait, aftermath).IgnoreError();
  aftermath.waits.insert(std::move(node));
}

absl::Status HandleStore::MakeAnswers(Wait& wait, Aftermath& aftermath) {
  return Guarded("the answer of a wait", [&] {
    mu_.AssertHeld();
    std::vector<HandleAnswer> answers;
    answers.reserve(wait.names.size());
    for (const HandleName& name : wait.names) answers.push_back(Answer(wait.caller, name, aftermath));
    wait.answers = std::move(answers);
  });
}

void HandleStore::TellWait(Wait& wait) {
  if (!wait.answers.has_value()) {  // there was no memory for them
    Aftermath aftermath(this);
    absl::MutexLock lock(&mu_);
    MakeAnswers(wait, aftermath).IgnoreError();
  }
  if (wait.answers.has_value()) {
    Guarded("a wait for handles", [&] { wait.callback(*std::move(wait.answers)); }).IgnoreError();
  }
}

void HandleStore::OnContents(const std::vector<HandlePin>& pins, std::function<void()> callback) {
  {
    absl::MutexLock lock(&mu_);
    auto wait = std::make_shared<ContentWait>();
    absl::Cleanup undo = [&] {
      for (const HandlePin& pin : pins) std::erase(pin.entry_->content_waits, wait);
    };
    for (const HandlePin& pin : pins) {
      if (pin.entry_->result.has_value()) continue;
      ++wait->remaining;
      pin.entry_->content_waits.push_back(wait);
    }
    std::move(undo).Cancel();
    if (wait->remaining > 0) {
      wait->callback = std::move(callback);
      return;
    }
  }
  callback();
}

}  // namespace penstock
