#pragma once

// Calls that end before their work does: by a cancel, by their deadline, because their handles were released, or by a
// drain.

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/accumulation_watch.h"
#include "engine/serve/call.h"
#include "engine/serve/call_journal.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"

namespace penstock {

// Ends calls early.
//
// Model:     What waits is taken out of its queue. What runs and changes no state is asked to stop; what
//            changes state runs to its end.
// Owns:      nothing; what it is made of outlives it.
// Threads:   any; under no lock but where it says so.
class Cancellation {
 public:
  Cancellation(ServedCalls* calls, Settlement* settlement, AccumulationWatch* watch, CallJournal* journal)
      : calls_(calls), settlement_(settlement), watch_(watch), journal_(journal) {}

  CancelEffect Cancel(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // One of its handles was released. With the last one, a call that changes no state is cancelled.
  void Abandon(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void OnDeadline(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);

  // Takes calls that wait out of the queues; SettleCancelled() then ends them. One whose end throws keeps no other from
  // ending.
  void RemoveQueued(ServedCalls& calls, const std::vector<CallPointer>& waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls.mu);
  // `for_good`: what stands in the journal is cancelled there, too; else it is left there, for the next life to run.
  void SettleCancelled(const std::vector<CallPointer>& removed, bool for_good) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // The same for a pipeline that has lost a rank: they fail with that, and what stands in the journal is left there.
  void SettleLost(const std::vector<CallPointer>& removed, const absl::Status& why) ABSL_LOCKS_EXCLUDED(calls_->mu);

 private:
  // Ends a call that RemoveQueued() has taken. Until the end of one in the journal is on its way there, it counts as
  // unsettled: no checkpoint may stand behind it.
  void SettleRemoved(const std::function<void()>& settle) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Ends a call that nothing else will end; of one in the journal, when that is durable.
  void Settle(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Once more where there was no memory.
  void SettleNow(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Whether it stands in the journal, and will never run.
  bool IsAppended(Call& call) const ABSL_LOCKS_EXCLUDED(calls_->mu);
  void RemoveQueued(ServedCalls& calls, const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls.mu);

  ServedCalls* const calls_;
  Settlement* const settlement_;
  AccumulationWatch* const watch_;
  CallJournal* const journal_;                      // null: there is none
  const absl::Status cancelled_ = CancelledCall();  // a copy of it takes no memory
  const absl::Status left_ = CallLeftInJournal();   // the same
};

}  // namespace penstock
