// Several handles of the same bytes: who gets one, and who is charged.

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_entry.h"
#include "engine/handles/handle_store.h"

namespace penstock {

absl::StatusOr<HandleInfo> HandleStore::Share(const std::string& caller, const HandleName& name,
                                              const std::string& recipient, absl::Duration lease) {
  PENSTOCK_ASSIGN_OR_RETURN(lease, CheckedLease(lease));
  auto share = std::make_shared<HandleEntry>();  // goes after the lock
  share->name = {name.pipeline, RandomHandleId(options_.epoch)};
  share->owner = recipient;
  share->counted_for = caller;
  share->method = "ShareHandle";
  share->create_time = clock_->WallNow();
  share->lease_nanos = absl::ToInt64Nanoseconds(lease);
  share->held = memory_->TakeAnyway({MemoryClass::kHandles, recipient, name.pipeline}, 0);

  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  PENSTOCK_ASSIGN_OR_RETURN(const EntryPointer entry, Find(caller, name, aftermath));
  if (entry->kind != HandleKind::kValue) {
    return HandleError(absl::StatusCode::kInvalidArgument, "HANDLE_KIND",
                       "the handle holds no tensors, and nothing else can be shared", name);
  }
  if (!entry->result.has_value()) {
    return HandleError(absl::StatusCode::kDeadlineExceeded, "HANDLE_PENDING",
                       "the handle has no result yet, and can be shared when it has", name);
  }
  if (!entry->result->ok()) return entry->result->status();

  // What takes memory comes before what is counted.
  share->result = entry->result;
  share->tensors = entry->tensors;
  share->values = entry->values;
  if (entry->shares == nullptr) {
    auto shares = std::make_shared<HandleShares>();
    shares->holders.emplace(entry->serial, entry.get());
    shares->charged = entry.get();
    entry->shares = std::move(shares);
  }
  StartLease(share, clock_->NowNanos() + share->lease_nanos);
  absl::Cleanup undo_lease = [&] { timers_->Remove(share->timer); };
  const auto holder = entry->shares->holders.emplace(serial_ + 1, share.get()).first;
  absl::Cleanup undo_holder = [&] { entry->shares->holders.erase(holder); };
  HandleInfo info = Describe(*share);
  PENSTOCK_RETURN_IF_ERROR(Link(share));
  PENSTOCK_CHECK(share->serial == holder->first);
  share->shares = entry->shares;
  std::move(undo_holder).Cancel();
  std::move(undo_lease).Cancel();
  SetState(*share, HandleState::kReady);
  info.state = share->state;
  info.serial = share->serial;
  return info;
}

void HandleStore::PassCharge(HandleEntry& entry) {
  if (entry.shares == nullptr || entry.shares->charged != &entry) return;
  for (const auto& [serial, holder] : entry.shares->holders) {
    if (!holder->live) continue;
    entry.held.GiveTo(holder->held);
    entry.shares->charged = holder;
    return;
  }
}

void HandleStore::LeaveShares(HandleEntry& entry) {
  if (entry.shares == nullptr) return;
  HandleShares& shares = *entry.shares;
  shares.holders.erase(entry.serial);
  if (shares.charged == &entry) {
    shares.charged = shares.holders.empty() ? nullptr : shares.holders.begin()->second;
    if (shares.charged != nullptr) entry.held.GiveTo(shares.charged->held);
  }
  entry.shares.reset();
}

}  // namespace penstock
