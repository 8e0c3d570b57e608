#pragma once

// Calls that can start, by turns of their callers.

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "engine/serve/call.h"

namespace penstock {

// Self-clocked fair queueing (Golestani, INFOCOM 1994), in rows: while several callers have calls that wait, each gets
// the same number of rows run, but for the largest of one call.
//
// Model:     Time is virtual: the end of the latest turn that has been run. The first of a caller's calls has a turn,
//            which ends its rows behind what the caller has under way, or behind now: who was away has saved nothing
//            up, and owes nothing for what it had alone. The least end goes first, of equal ones the earlier call. So
//            a caller's first call waits until each other caller has had about as many rows, and one that comes later
//            and has no fewer does not pass it, under whatever name. What joins another's run counts as a turn.
// Memory:    that of the calls; of a caller without one nothing is kept.
// Threads:   those of the lock around it.
// Fails:     Add() throws std::bad_alloc before anything has happened; the others take no memory.
class CallerTurns {
 public:
  void Add(const CallPointer& call);
  // Of one that waits; false: it doesn't.
  bool Remove(const CallPointer& call);
  // Of each caller the earliest call that may start, and of these the one whose turn ends first; null: there is none. It
  // may pass others of its caller, and has the turn that it would have as the first.
  CallPointer Next(absl::FunctionRef<bool(const Call&)> may_start) const;
  // What Next() returned runs, until End().
  void Start(const CallPointer& call);
  void End(const CallPointer& call);

  bool idle() const { return callers_.empty(); }

 private:
  struct Waiting {
    CallPointer call;
    int64_t number;  // in order of Add()
  };
  struct Caller {
    std::deque<Waiting> waiting;  // the first has its turn
    int64_t running = 0;
    int64_t end = 0;  // of all that it has under way
  };
  using Callers = std::map<std::string, Caller>;

  void GiveTurn(const Caller& caller) const;                    // to its first call
  int64_t EndOf(const Caller& caller, const Call& call) const;  // of the call's turn, if it were the first
  void ForgetIfIdle(Callers::iterator caller);

  Callers callers_;  // with something that waits or runs
  int64_t now_ = 0;
  int64_t added_ = 0;
};

}  // namespace penstock
