#pragma once

// The messages that measure a link: one way up to kMaximumProbeBytes, and an empty echo back.

#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/transport/carrier.h"

namespace penstock {

inline constexpr int64_t kMaximumProbeBytes = int64_t{8} << 20;

// Keeps the probes of this rank that wait for their echo, and whose probe it is reading.
//
// Threads:   any method from any thread; calls are made without a lock, each at most once.
// Lifecycle: what Read() returns must have ended before it goes.
class PeerProbes {
 public:
  using OnEcho = std::function<void(const absl::Status&)>;

  // Returns the number that the echo must have.
  int64_t Open(Rank peer, OnEcho on_echo) ABSL_LOCKS_EXCLUDED(mu_);
  // The end of one, if it still waits: an echo of its peer, or why there is none.
  void End(Rank peer, int64_t number, const absl::Status& how) ABSL_LOCKS_EXCLUDED(mu_);
  // Those of a peer, or of all, will have no echo. Takes no memory.
  void EndAllOf(Rank peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void EndAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Where a peer's probe goes, to be dropped; `echo` is called when it has come.
  //
  // Fails:     RANK_MESSAGE for one that is too large, or comes while another one of this peer is read.
  absl::StatusOr<Landing> Read(Rank from, int64_t payload_bytes, std::function<void()> echo) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct OpenProbe {
    Rank peer;
    OnEcho on_echo;
  };
  void EndThose(absl::FunctionRef<bool(Rank)> of, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::map<int64_t, OpenProbe> open_ ABSL_GUARDED_BY(mu_);  // by number
  int64_t opened_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<Rank> read_ ABSL_GUARDED_BY(mu_);  // peers whose probe is being read
};

}  // namespace penstock
