#include "engine/transport/local_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"

namespace penstock {

namespace {

// The same values on another device, perhaps still on their way.
absl::StatusOr<ValuesInFlight> Carry(Batch values, DeviceStreams& from, DeviceStreams& to) {
  if (&from == &to) return ValuesInFlight{std::move(values), nullptr};
  PENSTOCK_ASSIGN_OR_RETURN(TensorsInFlight copies, CopyTensors(values.AllTensors(), from, to));
  auto next = copies.tensors.begin();
  return ValuesInFlight{values.MapTensors([&next](const at::Tensor&) { return *next++; }), std::move(copies.ready)};
}

}  // namespace

LocalTransport::LocalTransport(std::vector<DeviceStreams*> streams, std::function<void(const MessageKey&)> on_arrival)
    : streams_(std::move(streams)), on_arrival_(std::move(on_arrival)) {
  for (size_t stage = 0; stage < streams_.size(); ++stage) mailboxes_.push_back(std::make_unique<Mailbox>());
}

void LocalTransport::Open(int64_t run) {
  for (auto& mailbox : mailboxes_) {
    absl::MutexLock lock(&mailbox->mu);
    mailbox->open.insert(run);
  }
}

absl::Status LocalTransport::Send(const MessageKey& key, Batch values) {
  Mailbox& mailbox = *mailboxes_.at(key.stage);
  const int sender = key.peer >= 0 ? key.peer : key.stage + (key.gradient ? 1 : -1);
  PENSTOCK_ASSIGN_OR_RETURN(ValuesInFlight message,
                            Carry(std::move(values), *streams_.at(sender), *streams_.at(key.stage)));
  {
    absl::MutexLock lock(&mailbox.mu);
    if (!mailbox.open.contains(key.run)) return absl::OkStatus();
    if (!mailbox.messages.try_emplace(key, std::move(message)).second) {
      return Error(absl::StatusCode::kInternal, "BUG",
                   absl::StrCat(key.gradient ? "gradient" : "activation", " sent twice to stage ", key.stage,
                                ", micro-batch ", key.micro_batch));
    }
  }
  if (on_arrival_) on_arrival_(key);
  return absl::OkStatus();
}

std::optional<ValuesInFlight> LocalTransport::TryReceive(const MessageKey& key) {
  Mailbox& mailbox = *mailboxes_.at(key.stage);
  absl::MutexLock lock(&mailbox.mu);
  auto found = mailbox.messages.find(key);
  if (found == mailbox.messages.end()) return std::nullopt;
  std::optional<ValuesInFlight> message = std::move(found->second);
  mailbox.messages.erase(found);
  return message;
}

void LocalTransport::Close(int64_t run) {
  for (auto& mailbox : mailboxes_) {
    std::vector<ValuesInFlight> dropped;  // declared before the lock, so freed after it
    absl::MutexLock lock(&mailbox->mu);
    if (mailbox->open.erase(run) == 0) continue;
    for (auto it = mailbox->messages.begin(); it != mailbox->messages.end();) {
      auto current = it++;
      if (current->first.run == run) {
        dropped.push_back(std::move(current->second));
        mailbox->messages.erase(current);
      }
    }
  }
}

int64_t LocalTransport::waiting() const {
  int64_t count = 0;
  for (const auto& mailbox : mailboxes_) {
    absl::MutexLock lock(&mailbox->mu);
    count += static_cast<int64_t>(mailbox->messages.size());
  }
  return count;
}

}  // namespace penstock
