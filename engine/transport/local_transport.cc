#include "engine/transport/local_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

LocalTransport::LocalTransport(int stages, std::function<void(const MessageKey&)> on_arrival)
    : on_arrival_(std::move(on_arrival)) {
  for (int stage = 0; stage < stages; ++stage) mailboxes_.push_back(std::make_unique<Mailbox>());
}

void LocalTransport::Open(int64_t run) {
  for (auto& mailbox : mailboxes_) {
    absl::MutexLock lock(&mailbox->mu);
    mailbox->open.insert(run);
  }
}

absl::Status LocalTransport::Send(const MessageKey& key, Batch values) {
  Mailbox& mailbox = *mailboxes_.at(key.stage);
  {
    absl::MutexLock lock(&mailbox.mu);
    if (!mailbox.open.contains(key.run)) return absl::OkStatus();
    if (!mailbox.messages.try_emplace(key, std::move(values)).second) {
      return Error(absl::StatusCode::kInternal, "BUG",
                   absl::StrCat(key.gradient ? "gradient" : "activation", " sent twice to stage ", key.stage,
                                ", micro-batch ", key.microbatch));
    }
  }
  if (on_arrival_) on_arrival_(key);
  return absl::OkStatus();
}

std::optional<Batch> LocalTransport::TryReceive(const MessageKey& key) {
  Mailbox& mailbox = *mailboxes_.at(key.stage);
  absl::MutexLock lock(&mailbox.mu);
  auto found = mailbox.messages.find(key);
  if (found == mailbox.messages.end()) return std::nullopt;
  std::optional<Batch> values = std::move(found->second);
  mailbox.messages.erase(found);
  return values;
}

void LocalTransport::Close(int64_t run) {
  for (auto& mailbox : mailboxes_) {
    std::vector<Batch> dropped;  // declared before the lock, so freed after it
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
