// The life of a handle's entry: what it is charged, its lease, its end, its tombstone.

#include <algorithm>
#include <utility>

#include "engine/base/block_bytes.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_entry.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/metrics.h"

namespace penstock {

absl::Status HandleStore::Recharge(HandleEntry& entry, int64_t bytes) {
  const int64_t more = bytes - entry.held.bytes();
  PENSTOCK_RETURN_IF_ERROR(entry.held.Resize(bytes));
  Count(entry, [more](Counts& c) { c.bytes += more; });
  return absl::OkStatus();
}

void HandleStore::SetState(HandleEntry& entry, HandleState state) {
  const HandleState old = std::exchange(entry.state, state);
  const bool was_open = old == HandleState::kPending || old == HandleState::kReady;
  const bool is_open = state == HandleState::kPending || state == HandleState::kReady;
  Count(entry, [&](Counts& c) {
    --c.by_state[static_cast<int>(old)];
    if (state != HandleState::kReleased && state != HandleState::kExpired) ++c.by_state[static_cast<int>(state)];
    if (entry.kind == HandleKind::kGraph) c.open_graphs += int{is_open} - int{was_open};
  });
}

void HandleStore::StartLease(const EntryPointer& entry, int64_t expire_nanos) {
  const TimerQueue::TimerId timer = timers_->Add(expire_nanos, [this, id = entry->name.id] { OnLeaseTimer(id); });
  timers_->Remove(std::exchange(entry->timer, timer));
  entry->expire_nanos = expire_nanos;
}

void HandleStore::RenewEntry(const EntryPointer& entry, int64_t lease_nanos) {
  if (!entry->result.has_value()) return;
  entry->lease_nanos = std::max(entry->lease_nanos, lease_nanos);  // for its tombstone
  const int64_t expire_nanos = clock_->NowNanos() + lease_nanos;
  if (expire_nanos > entry->expire_nanos) StartLease(entry, expire_nanos);
}

void HandleStore::OnLeaseTimer(const HandleId& id) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  auto found = entries_.find(id);
  if (found == entries_.end() || !found->second->result.has_value() ||
      found->second->expire_nanos > clock_->NowNanos()) {
    return;  // released or renewed meanwhile
  }
  EntryPointer entry = found->second;
  End(entry, HandleState::kExpired, aftermath);
}

void HandleStore::Unlink(HandleEntry& entry) {
  PENSTOCK_CHECK(entry.live);
  entry.live = false;
  timers_->Remove(std::exchange(entry.timer, TimerQueue::kNoTimer));
  entries_.erase(entry.name.id);
  auto owned = owners_.find(entry.owner);
  owned->second.erase(entry.serial);
  if (owned->second.empty()) owners_.erase(owned);
  budget_.Refund(entry.counted_for);
  PassCharge(entry);
}

void HandleStore::End(const EntryPointer& entry, HandleState state, Aftermath& aftermath) {
  // All that takes memory comes first; as long as the entry is live, nobody looks at its tombstone.
  AddTombstone(*entry, state);
  aftermath.MakeRoom(0);
  if (entry->pins > 0 && !entry->result.has_value()) detached_.emplace(entry->name.id, entry);
  Unlink(*entry);
  SetState(*entry, state);
  const bool released = state == HandleState::kReleased;
  Count(*entry, [&](Counts& c) { ++(released ? c.released : c.expired); });
  if (options_.metrics != nullptr) {
    options_.metrics->handles_ended[released ? HandleEnd::kReleased : HandleEnd::kExpired].Add();
  }
  WakeWaits(*entry, aftermath);
  if (entry->pins == 0) aftermath.freed.push_back(FreeContent(*entry));
}

int64_t HandleStore::BytesOf(const Tombstone& tombstone) {
  return MapNodeBytes<HandleId, Tombstone>() + static_cast<int64_t>(sizeof(HandleId)) + BlockBytes(tombstone.owner) +
         BlockBytes(tombstone.pipeline);
}

void HandleStore::AddTombstone(const HandleEntry& entry, HandleState state) {
  const int64_t now = clock_->NowNanos();
  const int64_t kept = std::max(entry.lease_nanos, absl::ToInt64Nanoseconds(options_.tombstone_time));
  Tombstone tombstone{entry.owner, entry.name.pipeline, entry.kind, state, now + kept};
  tombstone_order_.push_back(entry.name.id);
  const auto [made, fresh] = tombstones_.try_emplace(entry.name.id, std::move(tombstone));
  int64_t bytes = tombstones_held_.bytes() + (fresh ? BytesOf(made->second) : 0);
  while (!tombstone_order_.empty()) {
    auto oldest = tombstones_.find(tombstone_order_.front());
    const bool gone = oldest == tombstones_.end();  // withdrawn
    const bool many = static_cast<int64_t>(tombstone_order_.size()) > options_.max_tombstones;
    if (!gone && !many && oldest->second.until_nanos > now) break;
    if (!gone) {
      bytes -= BytesOf(oldest->second);
      tombstones_.erase(oldest);
    }
    tombstone_order_.pop_front();
  }
  tombstones_held_.ResizeAnyway(bytes);
}

HandleStore::Freed HandleStore::FreeContent(HandleEntry& entry) {
  Freed freed{.id = entry.name.id};
  if (entry.result.has_value()) {
    freed.content = std::move(entry.result);
    entry.result = absl::Status(absl::StatusCode::kNotFound, "");
  } else {
    detached_.erase(entry.name.id);
    freed.abandoned = std::move(entry.producer);
  }
  LeaveShares(entry);
  PENSTOCK_CHECK(Recharge(entry, 0).ok());
  return freed;
}

void HandleStore::Unpin(const EntryPointer& entry) {
  std::optional<Freed> freed;  // goes after the lock; a destructor calls this, so that nothing may fail
  {
    absl::MutexLock lock(&mu_);
    --pins_;
    if (--entry->pins == 0 && !entry->live) freed = FreeContent(*entry);
  }
  if (freed.has_value()) freed->Abandon();
}

}  // namespace penstock
