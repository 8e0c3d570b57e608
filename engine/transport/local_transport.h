#pragma once

#include <functional>
#include <vector>

#include "engine/transport/mailboxes.h"
#include "engine/transport/transport.h"

namespace penstock {

// A transport inside one process: tensors change hands without a copy, unless their stages stand on different
// accelerators.
//
// Threads:   any method from any thread; `on_arrival` runs on the sender's thread, without a lock held.
class LocalTransport : public Transport {
 public:
  // `streams` of the stages' devices. `on_arrival` is called with each key that can now be received; it may be empty.
  LocalTransport(std::vector<DeviceStreams*> streams, std::function<void(const MessageKey&)> on_arrival);

  void Open(int64_t run) override { mailboxes_.Open(run); }
  absl::Status Send(const MessageKey& key, Batch values) override;
  std::optional<ValuesInFlight> TryReceive(const MessageKey& key) override { return mailboxes_.Take(key); }
  void Close(int64_t run) override { mailboxes_.Close(run); }

  // Messages that have not been received yet.
  int64_t waiting() const { return mailboxes_.waiting(); }

 private:
  const std::vector<DeviceStreams*> streams_;  // by stage
  const std::function<void(const MessageKey&)> on_arrival_;
  Mailboxes mailboxes_;
};

}  // namespace penstock
