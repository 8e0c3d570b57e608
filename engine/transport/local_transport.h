#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "engine/transport/transport.h"

namespace penstock {

// A transport inside one process: tensors change hands without a copy, unless their stages stand on different
// accelerators.
//
// Model:     per receiving stage, a map from key to tensors, and the set of open runs.
// Threads:   any method from any thread; `on_arrival` runs on the sender's thread, without a lock held.
// Lifecycle: Open(run) before its first message, Close(run) after its last.
class LocalTransport : public Transport {
 public:
  // `streams` of the stages' devices. `on_arrival` is called with each key that can now be received; it may be empty.
  LocalTransport(std::vector<DeviceStreams*> streams, std::function<void(const MessageKey&)> on_arrival);

  void Open(int64_t run);
  absl::Status Send(const MessageKey& key, Batch values) override;
  std::optional<ValuesInFlight> TryReceive(const MessageKey& key) override;
  void Close(int64_t run) override;

  // Messages that have not been received yet.
  int64_t waiting() const;

 private:
  struct Mailbox {
    mutable absl::Mutex mu;
    absl::flat_hash_set<int64_t> open ABSL_GUARDED_BY(mu);
    absl::flat_hash_map<MessageKey, ValuesInFlight> messages ABSL_GUARDED_BY(mu);
  };
  const std::vector<DeviceStreams*> streams_;  // by stage
  const std::function<void(const MessageKey&)> on_arrival_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // by receiving stage; constant after construction
};

}  // namespace penstock
