#pragma once

// Inference of one pipeline that waits or runs, as a value without locks.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "engine/base/queue_bounds.h"
#include "engine/serve/call.h"
#include "engine/serve/caller_turns.h"

namespace penstock {

// Inference calls, some of which run at any time.
//
// Model:     A call waits from acceptance on; once its inputs are there it is ready, too. The ready ones start by
//            priority, those of equal priority by turns of their callers (caller_turns.h), and those of one caller as
//            they became ready; the lanes keep to that order. So that a caller with many runs does not keep another's
//            first from the lanes, callers without a run start one each beyond the limit, up to a quarter of it. Of the
//            runs, a caller's with a priority above 0 take at most a quarter while another call can start, so that one
//            caller with the highest priority does not keep all others waiting.
// Threads:   Those of ServedCalls, whose lock is held around every call.
// Fails:     CheckNew: QUEUE_FULL, CALLER_QUOTA.
class InferenceQueue {
 public:
  // `in_flight`: how many may run.
  InferenceQueue(QueueBounds::Limits limits, int in_flight) : bounds_("inference", limits), in_flight_(in_flight) {}

  absl::Status CheckNew(const Call& call) const;
  void Add(const CallPointer& call);
  void SetReady(const CallPointer& call);  // of one that waits
  void Remove(const CallPointer& call);    // before it runs

  bool runnable() const { return ready_ > 0 && (has_place() || Next() != nullptr); }
  // Takes the next call; it runs. Only if runnable().
  CallPointer Start();
  void EndRun(const CallPointer& call);

  const std::deque<CallPointer>& waiting() const { return waiting_; }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  bool idle() const { return waiting_.empty() && running_.empty(); }

 private:
  bool has_place() const { return running() < in_flight_; }
  CallPointer Next() const;               // null where none may start
  void Unready(const CallPointer& call);  // if it is ready
  void Leave(const CallPointer& call);    // what waits

  QueueBounds bounds_;
  const int in_flight_;
  std::deque<CallPointer> waiting_;  // in order of acceptance
  std::set<CallPointer> running_;
  std::map<int32_t, CallerTurns, std::greater<>> turns_;  // by priority; of those that are ready or run
  int64_t ready_ = 0;
};

}  // namespace penstock
