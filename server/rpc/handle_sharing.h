#pragma once

// Calls that give a handle to another caller, kept apart from their service: one that is repeated has one effect.

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/request_log.h"

namespace penstock {

// What the request log counts of a recorded handle beside the name itself.
inline int64_t HeapBytes(const HandleName& name) { return BlockBytes(name.pipeline); }

// Shares handles, each call with a request id once.
//
// Model:     The names of the handles that were made, by caller and request id (RequestLog). As the handles they live in
//            memory, and end with the process.
// Owns:      nothing but these; HandleStore, Clock and MemoryLedger outlive it.
// Threads:   Any method from any thread. Two attempts of one call may both make a handle: the one that is recorded first
//            stays, the other is withdrawn before its caller has heard of it.
// Fails:     As HandleStore::Share(); REQUEST_ID_REUSED and REQUEST_LOG_FULL as RequestLog.
class HandleSharing {
 public:
  struct Request {
    std::string caller = {};
    HandleName name;
    std::string recipient = {};
    absl::Duration lease = absl::ZeroDuration();
    std::string request_id = {};  // empty: each call makes a handle
    std::string payload_digest = {};
  };

  HandleSharing(HandleStore* handles, Clock* clock, MemoryLedger* memory);

  // The recipient's handle. That of an earlier attempt may have ended: it is returned all the same, as RELEASED or EXPIRED.
  absl::StatusOr<HandleInfo> Share(const Request& request) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The handle as it is now, also when it has ended.
  absl::StatusOr<HandleInfo> Recall(const Request& request, const HandleName& made) const;

  HandleStore* const handles_;
  Clock* const clock_;

  absl::Mutex mu_;
  RequestLog<HandleName> log_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
