#pragma once

// How much may wait in a queue, in all and of one caller.

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace penstock {

// Counts the calls that wait in one queue and the bytes that came with them, and says whether one more may come.
//
// Model:     A pair (calls, bytes) for the queue and for each caller that has calls in it. A caller that has some may
//            have no more than its share (CallerShare) of each limit; the first call of a caller needs room in the
//            queue only.
// Threads:   Those of its owner, which holds its lock around every call.
// Fails:     RESOURCE_EXHAUSTED / QUEUE_FULL; RESOURCE_EXHAUSTED / CALLER_QUOTA where only the caller's share is used
//            up. Both name the queue, the limit and its value.
class QueueBounds {
 public:
  struct Limits {
    int64_t calls = 0;
    int64_t bytes = 0;
    int64_t retry_after_ms = 100;  // that an error names
  };

  // `queue` names it in errors: "training".
  QueueBounds(std::string queue, Limits limits) : queue_(std::move(queue)), limits_(limits) {}

  absl::Status Check(const std::string& caller, int64_t bytes) const;
  void Add(const std::string& caller, int64_t bytes);
  // Takes back what Add() added.
  void Remove(const std::string& caller, int64_t bytes);

 private:
  struct Use {
    int64_t calls = 0;
    int64_t bytes = 0;
  };

  absl::Status Full(absl::StatusCode code, const char* reason, const std::string& whose, const char* limit_name,
                    int64_t limit) const;

  const std::string queue_;
  const Limits limits_;
  Use total_;
  std::map<std::string, Use> callers_;  // those with calls in the queue
};

}  // namespace penstock
