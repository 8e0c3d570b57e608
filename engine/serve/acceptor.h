#pragma once

// The way of a call into the queues.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/serve/call.h"
#include "engine/serve/call_journal.h"
#include "engine/serve/call_preparation.h"
#include "engine/serve/calls.h"
#include "engine/serve/cancellation.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"

namespace penstock {

class CancelToken;
class Clock;
class TimerQueue;

// Accepts calls, or says why not.
//
//   a call ──▶ recorded? ──▶ Admit ──▶ prepare: pin, check ──▶ reserve handles ──▶ recorded? Admit ──▶ queue ──▶ answer
//              (a retry)     (bounds,  (no lock held)                              (again: others
//                             order)                                                came meanwhile)
//
// Model:     a retry gets the first answer; where only the journal has it, new handles with what the journal has. What is
//            refused leaves no handle and no record.
// Owns:      nothing; what it is made of outlives it. Handles and timers hold calls, and reach this only while the
//            pipeline lives.
// Threads:   any; no lock held but where it says so.
// Fails:     DRAINING, QUEUE_FULL, CALLER_QUOTA, GRAPH_LIMIT, HANDLE_BUDGET, REQUEST_ID_REUSED, REQUEST_LOG_FULL; as
//            CallPreparation and TrainingQueue::CheckNew(). All name the pipeline.
class Acceptor {
 public:
  struct Options {
    std::string name;
    HandleStore* handles = nullptr;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    int open_graphs = 0;
    absl::Duration infer_timeout = absl::ZeroDuration();    // of calls that say none
    absl::Duration forward_timeout = absl::ZeroDuration();  // the same
  };

  Acceptor(Options options, ServedCalls* calls, const CallPreparation* preparation, Settlement* settlement,
           Cancellation* cancellation, CallJournal* journal)
      : options_(std::move(options)),
        calls_(calls),
        preparation_(preparation),
        settlement_(settlement),
        cancellation_(cancellation),
        journal_(journal) {}

  // A call with handles for its results.
  absl::StatusOr<Accepted> Accept(CallContext context, Request request) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // A save, copy, restore, write, delete or update: no handles, so its callers wait in a StateJoin, which the request
  // log knows from acceptance on.
  void AcceptState(CallContext context, Request request, StateCallback done) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // A read of parameters; once `cancel` says so, it makes no copy.
  void AcceptRead(CallContext context, ReadCall read, std::shared_ptr<CancelToken> cancel)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Ends an accumulation whose lease is over. No client call asks for it.
  void AcceptExpiry() ABSL_LOCKS_EXCLUDED(calls_->mu);

  // Queues a call that needs no admission, and sets its deadline.
  void Enqueue(ServedCalls& calls, const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls.mu);

  // Whether a call of this caller with this request id has been accepted, by whatever method, and is still known.
  bool HasAccepted(const std::string& caller, const std::string& request_id) const ABSL_LOCKS_EXCLUDED(calls_->mu);

 private:
  class Producer;

  // The answer to an earlier attempt, if there was one.
  absl::StatusOr<std::optional<Accepted>> Recorded(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_->mu);
  absl::Status Admit(const Call& call, bool handles_reserved) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_->mu);
  // The same from the journal, with new handles; of a call without handles, its answer.
  absl::StatusOr<std::optional<Accepted>> RecordedBefore(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  std::optional<absl::StatusOr<StateAnswer>> StateRecordedBefore(const Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void FulfilAgain(const Call& call, CallJournal::Earlier earlier);
  void WithdrawHandles(const Call& call) const;
  void AppendReady() const ABSL_LOCKS_EXCLUDED(calls_->mu);
  absl::Status ReserveHandles(const CallPointer& call, const CallResults& results);
  void OnInputsReady(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  absl::Status Refused(absl::Status status) const;

  const Options options_;
  ServedCalls* const calls_;
  const CallPreparation* const preparation_;
  Settlement* const settlement_;
  Cancellation* const cancellation_;
  CallJournal* const journal_;  // null: there is none
};

}  // namespace penstock
