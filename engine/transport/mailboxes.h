#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/transport/transport.h"

namespace penstock {

// Messages that have come and wait for their stage to take them.
//
// Model:     per receiving stage, a map from key to message, and the runs that are open or have been closed.
// Owns:      messages, and with each what its carrier wants to have back when it is taken or dropped.
// Threads:   any method from any thread.
// Lifecycle: Open(run), Close(run), each once. A message of a run that has not been opened yet is early: another rank has
//            begun it before this one. Where there may be early messages, a run is known to be closed for as long as a
//            thousand closed later; one whose number is smaller than all of those counts as closed, too.
class Mailboxes {
 public:
  enum class Early { kNever, kPossible };
  Mailboxes(int stages, Early early);

  void Open(int64_t run);
  void Close(int64_t run);

  // Whether no message of a run may come any more. Only where there may be early ones.
  bool IsClosed(int stage, int64_t run) const;

  // Keeps a message; false if it was dropped: its run is closed, or not open and the message may not be early, which it
  // may be only where there may be early ones.
  //
  // Fails:     INTERNAL / BUG for a key that is there already.
  absl::StatusOr<bool> Put(const MessageKey& key, ValuesInFlight message, bool may_be_early = false,
                           std::shared_ptr<const void> held = nullptr);
  std::optional<ValuesInFlight> Take(const MessageKey& key);

  // Messages that have not been taken yet.
  int64_t waiting() const;

 private:
  struct Entry {
    ValuesInFlight message;
    std::shared_ptr<const void> held;
  };
  struct Mailbox {
    bool Closed(int64_t run) const ABSL_SHARED_LOCKS_REQUIRED(mu) { return run <= forgotten || closed.contains(run); }

    mutable absl::Mutex mu;
    absl::flat_hash_set<int64_t> open ABSL_GUARDED_BY(mu);
    std::set<int64_t> closed ABSL_GUARDED_BY(mu);
    int64_t forgotten ABSL_GUARDED_BY(mu) = -1;  // closed, as all before it
    absl::flat_hash_map<MessageKey, Entry> messages ABSL_GUARDED_BY(mu);
  };
  const Early early_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // by receiving stage; constant after construction
};

}  // namespace penstock
