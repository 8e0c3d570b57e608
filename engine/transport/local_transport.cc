#include "engine/transport/local_transport.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace penstock {

LocalTransport::LocalTransport(std::vector<DeviceStreams*> streams, std::function<void(const MessageKey&)> on_arrival)
    : streams_(std::move(streams)),
      on_arrival_(std::move(on_arrival)),
      mailboxes_(static_cast<int>(streams_.size()), Mailboxes::Early::kNever) {}

absl::Status LocalTransport::Send(const MessageKey& key, Batch values) {
  PENSTOCK_ASSIGN_OR_RETURN(ValuesInFlight message,
                            Carry(std::move(values), *streams_.at(SenderOf(key)), *streams_.at(key.stage)));
  PENSTOCK_ASSIGN_OR_RETURN(const bool kept, mailboxes_.Put(key, std::move(message)));
  if (kept && on_arrival_) on_arrival_(key);
  return absl::OkStatus();
}

}  // namespace penstock
