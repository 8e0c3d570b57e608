#pragma once

// Inference of one pipeline that waits or runs, as a value without locks.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/caller_share.h"
#include "engine/base/queue_bounds.h"
#include "engine/serve/call.h"
#include "engine/serve/caller_turns.h"
#include "engine/serve/inference_batch.h"

namespace penstock {

// How calls are merged. Without places none is.
struct BatchLimits {
  int places = 0;        // batches that may run
  int64_t max_rows = 0;  // of a batch
  // That a call waits for others while there is a place; unset: as InferenceQueue says.
  std::optional<int64_t> max_delay_nanos = {};
};

// Inference calls, some of which run at any time.
//
// Model:     A call waits from acceptance on; once its inputs are there it is ready, too. The ready ones start by
//            priority, those of equal priority by turns of their callers (caller_turns.h), and those of one caller as
//            they became ready; the lanes keep to that order. So that a caller with many runs does not keep another's
//            first from the lanes, callers without a run start one each beyond the limit, up to a quarter of it. Of the
//            runs, a caller's with a priority above 0 take at most a quarter while another call can start, so that one
//            caller with the highest priority does not keep all others waiting.
//            Calls with a batch_key run in batches, for which there are few places, so that the next one grows while
//            they are taken: the call whose turn it is, and after it, in the order of their turns, those of the same
//            key that still fit. While there is a place, a call waits for others as long as the limits say. If they say
//            nothing and there is one place, calls wait after a run, for a quarter of its time at most, until they have
//            as many rows as it has answered and left waiting: who asks one thing after another comes back at once, and
//            one run for all is shorter than two for the halves. Where fewer than half came back in time, the next ends
//            of runs, up to 64 of them, are no reason to wait. After a run of less than 2 ms nobody is waited for: there
//            the time goes into messages, and halves that take turns keep both sides busy.
// Threads:   Those of ServedCalls, whose lock is held around every call.
// Fails:     CheckNew: QUEUE_FULL, CALLER_QUOTA.
class InferenceQueue {
 public:
  // `in_flight`: how many may run, a batch counting as one.
  InferenceQueue(QueueBounds::Limits limits, int in_flight, BatchLimits batching = {})
      : bounds_("inference", limits), in_flight_(in_flight), batching_(batching) {}

  absl::Status CheckNew(const Call& call) const;
  void Add(const CallPointer& call);
  void SetReady(const CallPointer& call);  // of one that waits
  void Remove(const CallPointer& call);    // before it runs

  bool runnable() const { return ready_ > 0 && !paused_ && ((!merging() && has_place()) || Next() != nullptr); }
  // Takes the next call, and those that go with it; they run. Only if runnable().
  BatchPointer Start();
  // The stages are done with it, and another batch may start; then EndRun() must follow.
  void LeaveStages(InferenceBatch& batch, int64_t now_nanos);
  void EndRun(const BatchPointer& batch, int64_t now_nanos);

  // The instant when a call that waits for others is to run without them; kNever: none waits so. Later instants are told
  // by Reached().
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t due_nanos() const;
  void Reached(int64_t now_nanos) { now_nanos_ = std::max(now_nanos_, now_nanos); }
  // Whether calls wait for no others: what is drained gets no more of them.
  void SetHurry(bool hurry) { hurry_ = hurry; }
  // No more batches: the model's outputs can't be parted.
  void StopMerging() { batching_ = {}; }
  // While paused, nothing starts.
  void SetPaused(bool paused) { paused_ = paused; }
  bool paused() const { return paused_; }
  // From now on. Only while nothing runs.
  void SetBatching(BatchLimits batching);

  const std::deque<CallPointer>& waiting() const { return waiting_; }
  int64_t running() const;  // calls
  bool idle() const { return waiting_.empty() && running_.empty(); }

 private:
  struct Caller {
    int64_t calls = 0;    // that are ready or run
    int64_t runs = 0;     // with calls of it
    int64_t urgent = 0;   // of these, with a priority above 0
    int64_t counted = 0;  // number of the last run that was counted as it began, or less than 0: as it ended
  };
  using Callers = std::map<std::string, Caller>;

  bool merging() const { return batching_.places > 0; }
  bool has_place() const { return std::ssize(running_) < in_flight_; }
  int64_t Quarter() const { return CallerShare(in_flight_, /*others=*/true); }
  bool may_run() const { return std::ssize(running_) < in_flight_ + Quarter(); }  // one of somebody without a run
  bool Merges(const Call& call) const { return merging() && !call.batch_key.empty(); }
  bool MayMerge(const Call& call) const;                      // a batch may start with it
  bool SomeMayMerge() const;                                  // of those that are ready
  bool IsDue(const Call& call) const;                         // it waits for no others
  bool IsEnough(const std::string& key, int64_t rows) const;  // to wait for no others of the key
  int64_t DueNanos(const Call& call) const;
  int64_t ReadyRows(const std::string& key) const;
  void Gather(const InferenceBatch& batch);
  void EndGathering(int64_t rows);
  void GivePlaceBack(InferenceBatch& batch);
  CallPointer Next() const;  // null where none may start
  void Take(const CallPointer& call, InferenceBatch& batch);
  bool Unready(const CallPointer& call);                        // if it is ready
  void LeaveReady(const Call& call);                            // of one that is
  void UncountRows(const Call& call);                           // if they are counted
  void Leave(const CallPointer& call);                          // what waits
  void CountRun(const Call& call, int64_t number, int change);  // of its caller; of several calls in one run once
  void ForgetIfIdle(Callers::iterator caller);

  QueueBounds bounds_;
  const int in_flight_;
  BatchLimits batching_;
  bool hurry_ = false;
  bool paused_ = false;
  int batches_ = 0;         // that hold places
  int64_t now_nanos_ = 0;   // of what Reached() has told
  int64_t told_nanos_ = 0;  // when the last run ended: until then its only lane told of it
  // Calls of this key wait for those who were answered, until then, or until they have so many rows.
  std::string gather_key_;
  int64_t gather_until_nanos_ = 0;
  int64_t gather_rows_ = 0;
  int64_t gather_answered_ = 0;      // of these, rows of who was answered; 0: nobody is waited for
  int futile_ = 0;                   // gatherings in a row
  int64_t skip_ = 0;                 // ends of runs that are no reason to wait
  std::deque<CallPointer> waiting_;  // in order of acceptance
  std::set<BatchPointer> running_;
  std::map<std::string, int64_t> ready_rows_;             // of calls with a key, by it
  std::map<int32_t, CallerTurns, std::greater<>> turns_;  // by priority; of those that are ready or run
  Callers callers_;                                       // with a call that is ready or runs
  int64_t started_ = 0;                                   // runs
  int64_t ready_ = 0;
  int64_t ready_batched_ = 0;  // of these, with a key
};

}  // namespace penstock
