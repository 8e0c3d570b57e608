#pragma once

// The order of calls that are under way together.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// Keeps calls that come before the call that they must follow.
//
// Model:     A waiting call names its predecessor by caller, pipeline and request id. It is taken out once: by the
//            predecessor's acceptance, or by Remove(). The request log, not this class, knows which calls were
//            accepted: Add(), then ask the log, then Remove() if it knows the predecessor.
// Threads:   Any method from any thread. `go` runs on the thread of Accepted(), without the lock; a chain of calls that
//            wait for each other runs there one after the other, not one within the other.
// Fails:     a `go` that throws is logged (guard.h), and the next one runs: it is not its predecessor's failure.
class CallOrder {
 public:
  struct Key {
    std::string caller;
    std::string pipeline;
    std::string request_id;

    auto operator<=>(const Key&) const = default;
  };
  using WaitId = uint64_t;

  WaitId Add(Key predecessor, std::function<void()> go) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the call still waited. Then its `go` never runs.
  bool Remove(WaitId id) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs what waited for this call, in the order of Add(). Within a `go` of the same thread it is noted, and done after
  // it.
  void Accepted(const Key& call) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    Key predecessor;
    std::function<void()> go;
  };

  // What waited for this call, which no longer waits.
  std::vector<std::function<void()>> TakeFollowers(const Key& call) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  WaitId last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<WaitId, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::multimap<Key, WaitId> by_predecessor_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
