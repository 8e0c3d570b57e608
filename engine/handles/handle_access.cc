// The consumer's side of the store: what callers ask of their own handles.

#include <algorithm>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/handles/handle_entry.h"
#include "engine/handles/handle_store.h"

namespace penstock {

HandleStore::HandleAnswer HandleStore::Answer(const std::string& caller, const HandleName& name, Aftermath& aftermath) {
  PENSTOCK_ASSIGN_OR_RETURN(const EntryPointer entry, Find(caller, name, aftermath));
  return Describe(*entry);
}

absl::StatusOr<HandleInfo> HandleStore::Get(const std::string& caller, const HandleName& name) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  return Answer(caller, name, aftermath);
}

absl::StatusOr<HandlePin> HandleStore::Pin(const std::string& caller, const HandleName& name) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  PENSTOCK_ASSIGN_OR_RETURN(EntryPointer entry, Find(caller, name, aftermath));
  ++entry->pins;
  ++pins_;
  entry->last_use = ++uses_;
  return HandlePin(this, std::move(entry));
}

void HandleStore::Collect(const std::map<uint64_t, EntryPointer>& owned, const std::string& pipeline, uint64_t after,
                          size_t limit, std::map<uint64_t, EntryPointer>* found) const {
  const int64_t now = clock_->NowNanos();
  size_t count = 0;
  for (auto it = owned.upper_bound(after); it != owned.end() && count < limit; ++it) {
    const HandleEntry& entry = *it->second;
    if (!pipeline.empty() && entry.name.pipeline != pipeline) continue;
    if (entry.result.has_value() && entry.expire_nanos <= now) continue;  // its timer is late
    found->insert(*it);
    ++count;
  }
}

HandlePage HandleStore::Page(const std::map<uint64_t, EntryPointer>& found, size_t limit) const {
  HandlePage page;
  for (const auto& [serial, entry] : found) {
    if (page.handles.size() == limit) {
      page.next = page.handles.back().serial;
      break;
    }
    page.handles.push_back(Describe(*entry));
  }
  return page;
}

HandlePage HandleStore::List(const std::string& caller, const std::string& pipeline, uint64_t after, int limit) {
  const auto most = static_cast<size_t>(std::max(limit, 1));
  std::map<uint64_t, EntryPointer> found;  // goes after the lock: it may hold the last share of something large
  absl::MutexLock lock(&mu_);
  if (auto owned = owners_.find(caller); owned != owners_.end())
    Collect(owned->second, pipeline, after, most + 1, &found);
  return Page(found, most);
}

HandlePage HandleStore::ListAll(const std::string& pipeline, uint64_t after, int limit) {
  const auto most = static_cast<size_t>(std::max(limit, 1));
  std::map<uint64_t, EntryPointer> found;  // as above
  absl::MutexLock lock(&mu_);
  for (const auto& [owner, owned] : owners_) Collect(owned, pipeline, after, most + 1, &found);
  return Page(found, most);
}

absl::StatusOr<HandleInfo> HandleStore::Renew(const std::string& caller, const HandleName& name, absl::Duration lease) {
  PENSTOCK_ASSIGN_OR_RETURN(lease, CheckedLease(lease));
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  PENSTOCK_ASSIGN_OR_RETURN(const EntryPointer entry, Find(caller, name, aftermath));
  RenewEntry(entry, absl::ToInt64Nanoseconds(lease));
  return Describe(*entry);
}

absl::StatusOr<std::vector<RenewedHandle>> HandleStore::RenewAll(const std::string& caller, const std::string& pipeline,
                                                                 absl::Duration lease) {
  PENSTOCK_ASSIGN_OR_RETURN(lease, CheckedLease(lease));
  std::vector<RenewedHandle> renewed;
  uint64_t after = 0;
  do {
    after = RenewSome(caller, pipeline, absl::ToInt64Nanoseconds(lease), after, &renewed);
  } while (after != 0);
  return renewed;
}

uint64_t HandleStore::RenewSome(const std::string& caller, const std::string& pipeline, int64_t lease_nanos,
                                uint64_t after, std::vector<RenewedHandle>* renewed) {
  constexpr int kMaxAtOnce = 1000;
  absl::MutexLock lock(&mu_);
  auto owned = owners_.find(caller);
  if (owned == owners_.end()) return 0;
  const int64_t now = clock_->NowNanos();
  int count = 0;
  for (auto it = owned->second.upper_bound(after); it != owned->second.end(); ++it) {
    const auto& [serial, entry] = *it;
    if (++count > kMaxAtOnce) return serial - 1;
    if (!pipeline.empty() && entry->name.pipeline != pipeline) continue;
    if (entry->result.has_value() && entry->expire_nanos <= now) continue;  // revives nothing
    RenewEntry(entry, lease_nanos);
    renewed->push_back({entry->name, entry->state, ExpireTime(*entry)});
  }
  return 0;
}

absl::StatusOr<HandleInfo> HandleStore::Release(const std::string& caller, const HandleName& name) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  absl::StatusOr<EntryPointer> entry = Find(caller, name, aftermath);
  HandleInfo info;
  if (entry.ok()) {
    End(*entry, HandleState::kReleased, aftermath);
    info.kind = (*entry)->kind;
    info.state = HandleState::kReleased;
    info.create_time = (*entry)->create_time;
    info.method = (*entry)->method;
  } else if (auto buried = tombstones_.find(name.id);
             buried != tombstones_.end() && ReasonOf(entry.status()) != "HANDLE_NOT_FOUND") {
    info.kind = buried->second.kind;
    info.state = buried->second.state;
  } else {
    return entry.status();
  }
  info.name = name;
  return info;
}

absl::StatusOr<CancelEffect> HandleStore::RequestCancel(const std::string& caller, const HandleName& name) {
  std::shared_ptr<HandleProducer> producer;
  {
    Aftermath aftermath(this);
    absl::MutexLock lock(&mu_);
    PENSTOCK_ASSIGN_OR_RETURN(const EntryPointer entry, Find(caller, name, aftermath));
    if (entry->state == HandleState::kCancelled) return CancelEffect::kCancelled;
    if (entry->state != HandleState::kPending) return CancelEffect::kNotCancellable;
    producer = entry->producer;
  }
  const CancelEffect effect = producer == nullptr ? CancelEffect::kCancelled : producer->RequestCancel();
  if (effect == CancelEffect::kCancelled) Cancel(name.id);
  return effect;
}

}  // namespace penstock
