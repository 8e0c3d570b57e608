#pragma once

// Between a pipeline's calls and its journal: a call is durable before it runs and before its caller relies on it, and
// its outcome before anybody is told.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/handles/handle_name.h"
#include "engine/journal/pipeline_journal.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/serve/call.h"
#include "engine/serve/call_records.h"
#include "engine/serve/served_calls.h"

namespace penstock {

// Appends the calls of the training order, and records how they went.
//
//   queue ──▶ inputs there ──▶ appended ──▶ durable: acknowledged, may run ──▶ done ──▶ recorded ──▶ settled
//
// Model:     calls are appended in their order: one that waits for its inputs keeps those behind it. A call that ends
//            before it is appended was never accepted: its caller gets an error, and nothing is kept of it. Reads and
//            the last save of a pipeline's life stand in the order, but not in the journal.
// Owns:      the journal, with its thread. ServedCalls and CallRecords must outlive it.
// Threads:   any; under no lock of the caller. What it calls back comes on the journal's thread.
// Lifecycle: Close() when no call is left.
// Fails:     as PipelineJournal.
class CallJournal {
 public:
  // `refused`: a call that the journal did not take; it is in no queue any more, and falls to nobody else.
  using Refused = std::function<void(const CallPointer&, const absl::Status&)>;

  // `held`: of the memory in which it finds earlier attempts.
  CallJournal(std::unique_ptr<PipelineJournal> journal, const CallRecords* records, ServedCalls* calls, Clock* clock,
              MemoryReservation held, Refused refused)
      : journal_(std::move(journal)),
        records_(records),
        calls_(calls),
        clock_(clock),
        refused_(std::move(refused)),
        held_(std::move(held)) {
    CountIndex();
  }

  // Whether such a call stands in a journal.
  static bool Keeps(const Call& call);

  // Appends what has its inputs, up to the first call that has not.
  void AppendReady() ABSL_LOCKS_EXCLUDED(append_mu_, calls_->mu);
  // Makes durable how an appended call went, and calls back, once.
  void RecordEnd(const CallPointer& call, const CallAnswer& answer, std::function<void(const absl::Status&)> then)
      ABSL_LOCKS_EXCLUDED(append_mu_, calls_->mu);
  // Waits until every call that has run is settled, and every save written.
  void AwaitSettled() const ABSL_LOCKS_EXCLUDED(calls_->mu);

  // How an earlier attempt at the call went, if it is known here and not to the request log. Fails: REQUEST_ID_REUSED,
  // CALL_OPEN.
  struct Earlier {
    int64_t sequence = 0;
    CallAnswer answer;
  };
  absl::StatusOr<std::optional<Earlier>> FindEarlier(const Call& call);
  bool Knows(const RequestKey& key);

  // A Forward that a replay has made again, whose caller may still ask for its results. It is nobody's handle.
  struct KeptForward {
    HandleId graph_id;  // by which the training order knows its graph
    std::shared_ptr<Graph> graph;
    NamedValues outputs;
    absl::Duration lease = absl::ZeroDuration();  // that it was asked for; 0: the default
  };
  void Keep(int64_t sequence, KeptForward forward, size_t limit) ABSL_LOCKS_EXCLUDED(kept_mu_);
  std::optional<KeptForward> TakeKept(int64_t sequence) ABSL_LOCKS_EXCLUDED(kept_mu_);
  void ForgetKept() ABSL_LOCKS_EXCLUDED(kept_mu_);
  // Their leases, by sequence.
  std::map<int64_t, absl::Duration> KeptLeases() const ABSL_LOCKS_EXCLUDED(kept_mu_);

  PipelineJournal& journal() const { return *journal_; }
  const CallRecords& records() const { return *records_; }
  // OK, or why no call is taken until a restart.
  absl::Status health() const ABSL_LOCKS_EXCLUDED(kept_mu_);
  void Close();

 private:
  CallPointer NextToAppend() ABSL_LOCKS_EXCLUDED(calls_->mu);
  absl::Status Append(const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(append_mu_);
  absl::StatusOr<NamedValues> ValuesOf(const Call& call) const;
  void OnAppended(const CallPointer& call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void CountIndex() ABSL_LOCKS_EXCLUDED(kept_mu_);
  bool IsDurable(Call& call) const ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Keeps why the journal is of no more use, if that is so. `outcome_is_lost`: of a call that is durable.
  void Note(const absl::Status& status, bool outcome_is_lost) ABSL_LOCKS_EXCLUDED(kept_mu_);

  const std::unique_ptr<PipelineJournal> journal_;
  const CallRecords* const records_;
  ServedCalls* const calls_;
  Clock* const clock_;
  const Refused refused_;

  absl::Mutex append_mu_;  // one appends at a time, so that the journal's order is that of the queue
  mutable absl::Mutex kept_mu_;
  std::map<int64_t, KeptForward> kept_ ABSL_GUARDED_BY(kept_mu_);  // by sequence
  absl::Status stopped_ ABSL_GUARDED_BY(kept_mu_);
  MemoryReservation held_ ABSL_GUARDED_BY(kept_mu_);
};

}  // namespace penstock
