#include "engine/handles/handle_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_entry.h"
#include "engine/observe/metrics.h"
#include "engine/tensor/codec.h"

namespace penstock {

namespace {

// Graphs are bounded by their number, and outcomes are a few words.
int64_t ContentBytes(const HandleContent& content) {
  const auto* held = std::get_if<std::shared_ptr<const HeldValues>>(&content);
  return held == nullptr ? 0 : (*held)->bytes();
}

// What the owner is told of the content.
absl::Status DescribeValues(const HandleContent& content, std::vector<TensorHeader>& headers,
                            std::vector<std::string>& names) {
  const auto* held = std::get_if<std::shared_ptr<const HeldValues>>(&content);
  if (held == nullptr) return absl::OkStatus();
  for (const NamedTensor& tensor : (*held)->tensors) {
    PENSTOCK_ASSIGN_OR_RETURN(headers.emplace_back(), HeaderOf(tensor.name, tensor.tensor));
  }
  for (const NamedValue& value : (*held)->values) names.push_back(value.name);
  return absl::OkStatus();
}

}  // namespace

HandleStore::HandleStore(Options options, Clock* clock, TimerQueue* timers)
    : options_(std::move(options)),
      own_memory_(options_.memory != nullptr
                      ? nullptr
                      : std::make_unique<MemoryLedger>(MemoryLedger::Options{.limit_bytes = options_.budget.bytes,
                                                                             .pools = {HandlePool(options_.budget)}})),
      memory_(options_.memory != nullptr ? options_.memory : own_memory_.get()),
      clock_(clock),
      timers_(timers),
      devices_(options_.device_bytes, options_.metrics),
      tombstones_held_(TakeMemoryAnyway(options_.memory, {.kind = MemoryClass::kAnswers}, 0)),
      budget_(options_.budget) {
  if (options_.metrics != nullptr) {
    options_.metrics->handle_limit_bytes[HandleTier::kHost].Set(static_cast<double>(options_.budget.bytes));
  }
}

HandleStore::~HandleStore() {
  Close();
  std::vector<TimerQueue::TimerId> timers;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, entry] : entries_) timers.push_back(entry->timer);
  }
  for (TimerQueue::TimerId timer : timers) timers_->Remove(timer);
  timers_->Quiesce();
}

absl::StatusOr<absl::Duration> HandleStore::CheckedLease(absl::Duration requested) const {
  if (requested == absl::ZeroDuration()) return options_.default_lease;
  if (requested < options_.min_lease || requested > options_.max_lease) {
    return InvalidField("lease",
                        absl::StrCat("must be between ", absl::FormatDuration(options_.min_lease), " and ",
                                     absl::FormatDuration(options_.max_lease)),
                        absl::FormatDuration(requested));
  }
  return requested;
}

absl::Status HandleStore::HandleError(absl::StatusCode code, std::string_view reason, std::string_view message,
                                      const HandleName& name) {
  return Error(code, reason, message).With("handle", ToString(name));
}

// --- The producer's side.

absl::StatusOr<HandleName> HandleStore::Reserve(Reservation reservation) {
  PENSTOCK_ASSIGN_OR_RETURN(const absl::Duration lease, CheckedLease(reservation.lease));
  auto entry = std::make_shared<HandleEntry>();
  entry->name = {std::move(reservation.pipeline), RandomHandleId(options_.epoch)};
  entry->owner = std::move(reservation.owner);
  entry->counted_for = entry->owner;
  entry->kind = reservation.kind;
  entry->method = std::move(reservation.method);
  entry->create_time = clock_->WallNow();
  entry->lease_nanos = absl::ToInt64Nanoseconds(lease);
  entry->producer = std::move(reservation.producer);

  const MemoryClass kind = reservation.upload ? MemoryClass::kUploads : MemoryClass::kHandles;
  const int64_t bytes = reservation.bytes + reservation.later_bytes;
  PENSTOCK_RETURN_IF_ERROR(WithRoom([&]() -> Wish {
    absl::StatusOr<MemoryReservation> taken = memory_->Take({kind, entry->owner, entry->name.pipeline}, bytes);
    if (taken.ok()) entry->held = *std::move(taken);
    return {.status = taken.status(), .bytes = bytes, .owner = entry->owner};
  }));
  entry->held.ShrinkTo(reservation.bytes);

  HandleName name = entry->name;
  absl::MutexLock lock(&mu_);
  PENSTOCK_RETURN_IF_ERROR(Link(entry));
  return name;
}

absl::Status HandleStore::Link(const EntryPointer& entry) {
  if (closed_) return Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing");
  // What takes memory comes before what is counted.
  std::shared_ptr<Counts>& counts = pipelines_[entry->name.pipeline];
  if (counts == nullptr) counts = std::make_shared<Counts>();
  entry->counts = counts;
  entry->serial = ++serial_;
  std::map<uint64_t, EntryPointer>& owned = owners_[entry->owner];
  absl::Cleanup undo_owned = [&] {
    mu_.AssertHeld();
    owned.erase(entry->serial);
    if (owned.empty()) owners_.erase(entry->owner);
  };
  owned.emplace(entry->serial, entry);
  entries_.emplace(entry->name.id, entry);
  absl::Cleanup undo_entry = [&] {
    mu_.AssertHeld();
    entries_.erase(entry->name.id);
  };
  PENSTOCK_RETURN_IF_ERROR(budget_.Charge(entry->counted_for));
  std::move(undo_entry).Cancel();
  std::move(undo_owned).Cancel();
  Count(*entry, [&](Counts& c) {
    ++c.by_state[static_cast<int>(HandleState::kPending)];
    ++c.created;
    c.bytes += entry->held.bytes();
    if (entry->kind == HandleKind::kGraph) ++c.open_graphs;
  });
  return absl::OkStatus();
}

absl::Status HandleStore::Hold(const HandleName& name, int64_t bytes) {
  absl::Status ended;  // what the handle has come to meanwhile
  const absl::Status held = WithRoom([&]() -> Wish {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name.id);
    if (found == entries_.end()) {
      ended = HandleError(absl::StatusCode::kNotFound, "HANDLE_RELEASED", "the handle was released", name);
      return {};
    }
    HandleEntry& entry = *found->second;
    if (entry.result.has_value()) {
      ended = entry.result->status();
      return {};
    }
    const int64_t more = bytes - entry.held.bytes();
    return {.status = Recharge(entry, bytes), .bytes = more, .owner = entry.owner};
  });
  return ended.ok() ? held : ended;
}

void HandleStore::Withdraw(const HandleId& id) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  const auto given_up = [](const HandleEntry& entry) {
    return HandleError(absl::StatusCode::kNotFound, "HANDLE_RELEASED", "what was to fill the handle was given up",
                       entry.name);
  };
  if (const auto detached = detached_.find(id); detached != detached_.end()) {
    const EntryPointer entry = detached->second;  // released meanwhile, while somebody waits for what it was to hold
    SettleEntry(entry, given_up(*entry), HandleState::kFailed, aftermath);
    return;
  }
  auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const EntryPointer entry = found->second;
  SettleEntry(entry, given_up(*entry), HandleState::kFailed, aftermath);  // for those who wait
  aftermath.MakeRoom(0);
  Unlink(*entry);
  SetState(*entry, HandleState::kReleased);
  Count(*entry, [](Counts& c) { --c.created; });
  if (entry->pins == 0) aftermath.freed.push_back(FreeContent(*entry));
}

void HandleStore::Fulfil(const HandleId& id, HandleContent content) {
  absl::StatusOr<HandleContent> placed = Guarded("room for a result", [&] { return Place(id, std::move(content)); });
  const HandleState state = placed.ok() ? HandleState::kReady : HandleState::kFailed;
  Settle(id, std::move(placed), state);
}

void HandleStore::Fulfil(const HandleId& id, HeldValues values) {
  Fulfil(id, HandleContent(std::make_shared<const HeldValues>(std::move(values))));
}

void HandleStore::Fail(const HandleId& id, absl::Status error) {
  PENSTOCK_CHECK(!error.ok());
  Settle(id, std::move(error), HandleState::kFailed);
}

void HandleStore::Cancel(const HandleId& id) {
  Settle(id, Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the call was cancelled"), HandleState::kCancelled);
}

void HandleStore::Settle(const HandleId& id, absl::StatusOr<HandleContent> result, HandleState state) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  auto found = entries_.find(id);
  if (found == entries_.end()) {
    found = detached_.find(id);
    if (found == detached_.end()) {
      aftermath.Keep(std::move(result));
      return;
    }
  }
  EntryPointer entry = found->second;
  SettleEntry(entry, std::move(result), state, aftermath);
}

void HandleStore::SettleEntry(const EntryPointer& entry, absl::StatusOr<HandleContent> result, HandleState state,
                              Aftermath& aftermath) {
  if (entry->result.has_value()) {  // cancelled, or failed by closing, before its producer came to an end
    aftermath.Keep(std::move(result));
    return;
  }
  // All that takes memory comes before what is seen: where there is none, the handle is PENDING as before.
  std::vector<TensorHeader> tensors;
  std::vector<std::string> values;  // their names
  std::optional<CallOutcome> described;
  if (result.ok()) {
    absl::Status taken = DescribeValues(*result, tensors, values);
    if (taken.ok()) taken = Recharge(*entry, HostBytes(*result));
    if (taken.ok()) taken = entry->held.Become(MemoryClass::kHandles);
    if (!taken.ok()) {
      aftermath.Keep(std::move(result));
      tensors.clear();
      values.clear();
      result = WithValue(std::move(taken), "handle", ToString(entry->name));
      state = HandleState::kFailed;
    }
  } else {
    result = WithValue(std::move(result).status(), "handle", ToString(entry->name));
  }
  if (result.ok()) {
    if (const auto* outcome = std::get_if<CallOutcome>(&*result)) described = *outcome;
  }
  aftermath.MakeRoom(entry->content_waits.size());
  if (entry->live) StartLease(entry, clock_->NowNanos() + entry->lease_nanos);
  if (!result.ok()) PENSTOCK_CHECK(Recharge(*entry, 0).ok());
  entry->tensors = std::move(tensors);
  entry->values = std::move(values);
  entry->outcome = std::move(described);
  entry->result = std::move(result);
  entry->last_use = ++uses_;
  aftermath.producers.push_back(std::move(entry->producer));
  if (entry->live) {
    SetState(*entry, state);
    if (state == HandleState::kCancelled) {
      Count(*entry, [](Counts& c) { ++c.cancelled; });
      if (options_.metrics != nullptr) options_.metrics->handles_ended[HandleEnd::kCancelled].Add();
    }
    WakeWaits(*entry, aftermath);
  } else {
    detached_.erase(entry->name.id);
  }
  for (const std::shared_ptr<ContentWait>& wait : entry->content_waits) {
    if (--wait->remaining == 0) aftermath.callbacks.push_back(std::move(wait->callback));
  }
  entry->content_waits.clear();
}

void HandleStore::Invalidate(const HandleId& id, absl::Status error) {
  PENSTOCK_CHECK(!error.ok());
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  auto found = entries_.find(id);
  if (found == entries_.end() || found->second->state != HandleState::kReady) return;
  EntryPointer entry = found->second;
  error = WithValue(std::move(error), "handle", ToString(entry->name));
  aftermath.Keep(*std::move(entry->result));  // leaves it as it is where there is no memory
  entry->result = std::move(error);
  entry->tensors.clear();
  entry->values.clear();
  entry->outcome.reset();
  PENSTOCK_CHECK(Recharge(*entry, 0).ok());
  SetState(*entry, HandleState::kFailed);
}

// --- What the consumer's side (handle_access.cc) stands on.

absl::StatusOr<HandleStore::EntryPointer> HandleStore::Find(const std::string& caller, const HandleName& name,
                                                            Aftermath& aftermath) {
  if (name.id.epoch != options_.epoch) {
    return HandleError(absl::StatusCode::kFailedPrecondition, "EPOCH_MISMATCH",
                       "the handle is from before a restart of the server", name);
  }
  const int64_t now = clock_->NowNanos();
  if (auto found = entries_.find(name.id); found != entries_.end()) {
    EntryPointer entry = found->second;
    if (entry->owner == caller && entry->name.pipeline == name.pipeline) {
      if (!entry->result.has_value() || now < entry->expire_nanos) return entry;
      End(entry, HandleState::kExpired, aftermath);  // its timer is late
    }
  }
  auto buried = tombstones_.find(name.id);
  if (buried == tombstones_.end() || buried->second.owner != caller || buried->second.pipeline != name.pipeline ||
      buried->second.until_nanos <= now) {
    return HandleError(absl::StatusCode::kNotFound, "HANDLE_NOT_FOUND", "there is no such handle", name);
  }
  if (buried->second.state == HandleState::kReleased) {
    return HandleError(absl::StatusCode::kNotFound, "HANDLE_RELEASED", "the handle was released", name);
  }
  return HandleError(absl::StatusCode::kNotFound, "HANDLE_EXPIRED", "the handle's lease has ended", name);
}

HandleInfo HandleStore::Describe(const HandleEntry& entry) const {
  HandleInfo info;
  info.name = entry.name;
  info.owner = entry.owner;
  info.kind = entry.kind;
  info.state = entry.state;
  info.method = entry.method;
  const bool ready = entry.result.has_value() && entry.result->ok();
  info.bytes = ready ? ContentBytes(**entry.result) : entry.held.bytes();  // of shares, each says the same
  info.create_time = entry.create_time;
  info.serial = entry.serial;
  if (!entry.result.has_value()) return info;
  info.expire_time = ExpireTime(entry);
  if (entry.result->ok()) {
    info.tensors = entry.tensors;
    info.values = entry.values;
    info.outcome = entry.outcome;
  } else {
    info.error = entry.result->status();
  }
  return info;
}

std::optional<absl::Time> HandleStore::ExpireTime(const HandleEntry& entry) const {
  if (!entry.result.has_value()) return std::nullopt;
  return clock_->WallNow() + absl::Nanoseconds(entry.expire_nanos - clock_->NowNanos());
}

// --- Everybody's.

void HandleStore::ReleasePipeline(const std::string& pipeline) {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  std::vector<EntryPointer> ending;
  for (const auto& [id, entry] : entries_) {
    if (entry->name.pipeline == pipeline) ending.push_back(entry);
  }
  for (const EntryPointer& entry : ending) End(entry, HandleState::kReleased, aftermath);
  pipelines_.erase(pipeline);
}

void HandleStore::PublishCounts() {
  if (options_.metrics == nullptr) return;
  ServerMetrics& metrics = *options_.metrics;
  const auto& states = total_.by_state;
  metrics.handles[HandleGauge::kPending].Set(static_cast<double>(states[int(HandleState::kPending)]));
  metrics.handles[HandleGauge::kReady].Set(static_cast<double>(states[int(HandleState::kReady)]));
  metrics.handles[HandleGauge::kFailed].Set(
      static_cast<double>(states[int(HandleState::kFailed)] + states[int(HandleState::kCancelled)]));
  metrics.handle_bytes[HandleTier::kHost].Set(static_cast<double>(total_.bytes));
}

HandleStore::Counts HandleStore::TotalCounts() const {
  absl::MutexLock lock(&mu_);
  return total_;
}

HandleStore::Counts HandleStore::CountsOf(const std::string& pipeline) const {
  absl::MutexLock lock(&mu_);
  auto found = pipelines_.find(pipeline);
  return found == pipelines_.end() ? Counts{} : *found->second;
}

std::map<std::string, HandleStore::Use> HandleStore::UseByOwner() const {
  std::map<std::string, Use> owners;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [owner, owned] : owners_) owners[owner].handles = static_cast<int64_t>(owned.size());
  }
  for (const auto& [holder, bytes] : memory_->State().holders) {
    const bool ours = holder.kind == MemoryClass::kHandles || holder.kind == MemoryClass::kUploads;
    if (ours) owners[holder.identity].bytes += bytes;
  }
  return owners;
}

void HandleStore::Close() {
  Aftermath aftermath(this);
  absl::MutexLock lock(&mu_);
  closed_ = true;
  std::vector<EntryPointer> pending;
  for (const auto* map : {&entries_, &detached_}) {
    for (const auto& [id, entry] : *map) {
      if (!entry->result.has_value()) pending.push_back(entry);
    }
  }
  for (const EntryPointer& entry : pending) {
    SettleEntry(entry, absl::Status(Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing")),
                HandleState::kFailed, aftermath);
  }
  while (!waits_.empty()) FinishWait(waits_.begin()->first, aftermath);
  mu_.Unlock();
  aftermath.Run();  // before the pins are awaited: these callbacks may be what lets go of them
  mu_.Lock();
  auto unpinned = [this] {
    mu_.AssertReaderHeld();
    return pins_ == 0;
  };
  mu_.Await(absl::Condition(&unpinned));
}

}  // namespace penstock
