#include "engine/transport/mailboxes.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr size_t kRemembered = 1000;  // closed runs

}  // namespace

Mailboxes::Mailboxes(int stages, Early early) : early_(early) {
  for (int stage = 0; stage < stages; ++stage) mailboxes_.push_back(std::make_unique<Mailbox>());
}

void Mailboxes::Open(int64_t run) {
  for (auto& mailbox : mailboxes_) {
    absl::MutexLock lock(&mailbox->mu);
    mailbox->open.insert(run);
  }
}

void Mailboxes::Close(int64_t run) {
  for (auto& mailbox : mailboxes_) {
    std::vector<Entry> dropped;  // declared before the lock, so freed after it
    absl::MutexLock lock(&mailbox->mu);
    mailbox->open.erase(run);
    if (early_ == Early::kPossible) mailbox->closed.insert(run);
    if (mailbox->closed.size() > kRemembered) {
      mailbox->forgotten = std::max(mailbox->forgotten, *mailbox->closed.begin());
      mailbox->closed.erase(mailbox->closed.begin());
    }
    for (auto it = mailbox->messages.begin(); it != mailbox->messages.end();) {
      auto current = it++;
      if (current->first.run == run) {
        dropped.push_back(std::move(current->second));
        mailbox->messages.erase(current);
      }
    }
  }
}

bool Mailboxes::IsClosed(int stage, int64_t run) const {
  PENSTOCK_CHECK(early_ == Early::kPossible);
  const Mailbox& mailbox = *mailboxes_.at(stage);
  absl::MutexLock lock(&mailbox.mu);
  return !mailbox.open.contains(run) && mailbox.Closed(run);
}

absl::StatusOr<bool> Mailboxes::Put(const MessageKey& key, ValuesInFlight message, bool may_be_early,
                                    std::shared_ptr<const void> held) {
  PENSTOCK_CHECK(!may_be_early || early_ == Early::kPossible);
  Mailbox& mailbox = *mailboxes_.at(key.stage);
  absl::MutexLock lock(&mailbox.mu);
  if (!mailbox.open.contains(key.run) && (!may_be_early || mailbox.Closed(key.run))) return false;
  if (mailbox.messages.contains(key)) {
    return Error(absl::StatusCode::kInternal, "BUG", ToString(key) + " was sent twice");
  }
  mailbox.messages.emplace(key, Entry{std::move(message), std::move(held)});
  return true;
}

std::optional<ValuesInFlight> Mailboxes::Take(const MessageKey& key) {
  std::shared_ptr<const void> held;  // declared before the lock, so given back after it
  Mailbox& mailbox = *mailboxes_.at(key.stage);
  absl::MutexLock lock(&mailbox.mu);
  auto found = mailbox.messages.find(key);
  if (found == mailbox.messages.end()) return std::nullopt;
  std::optional<ValuesInFlight> message = std::move(found->second.message);
  held = std::move(found->second.held);
  mailbox.messages.erase(found);
  return message;
}

int64_t Mailboxes::waiting() const {
  int64_t count = 0;
  for (const auto& mailbox : mailboxes_) {
    absl::MutexLock lock(&mailbox->mu);
    count += static_cast<int64_t>(mailbox->messages.size());
  }
  return count;
}

}  // namespace penstock
