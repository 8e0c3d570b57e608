// Room for results: values that nobody uses go from devices to the host, and from the host to files.
//
//   device ──▶ host ──▶ file          the least recently used first; graphs and what is pinned stay
//
// A value that has moved is used as before: elements on the host go to a stage's device with its forward, and those of a
// file are read by the kernel.

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/handles/handle_entry.h"
#include "engine/handles/handle_store.h"

namespace penstock {
namespace {

// A file for less is not worth its place among the mappings of a process.
constexpr int64_t kLeastFileBytes = int64_t{64} << 10;
constexpr int64_t kShareAtOnce = 32;  // of the budget

std::shared_ptr<const HeldValues> HeldIn(const HandleContent& content) {
  const auto* held = std::get_if<std::shared_ptr<const HeldValues>>(&content);
  return held == nullptr ? nullptr : *held;
}

absl::StatusOr<HeldValues> OnHost(const HeldValues& held) {
  HeldValues there;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    const at::NoGradGuard no_graph;
    there = MoveValues(held, [](const at::Tensor& tensor) { return tensor.cpu(); });
  }));
  there.in_file = false;
  return there;
}

// Whether its memory is used by others than its handle: a graph, or a reply on its way. Then a move would free nothing.
bool IsUsedElsewhere(const HeldValues& held) {
  return std::any_of(held.tensors.begin(), held.tensors.end(),
                     [](const NamedTensor& tensor) { return tensor.tensor.storage().use_count() > 1; });
}

int64_t TensorsOnHost(const HeldValues& held) {
  if (held.in_file) return 0;
  int64_t bytes = 0;
  for (const NamedTensor& tensor : held.tensors) {
    if (tensor.tensor.is_cpu()) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  }
  return bytes;
}

int64_t BytesOn(const std::string& device, const HeldValues& held) {
  for (const DeviceBudget::Place& place : DeviceBudget::PlacesOf(held)) {
    if (place.device == device) return place.bytes;
  }
  return 0;
}

}  // namespace

int64_t HostBytes(const HandleContent& content) {
  const std::shared_ptr<const HeldValues> held = HeldIn(content);
  return held == nullptr ? 0 : TensorsOnHost(*held) + held->value_bytes;
}

struct HandleStore::Shortage {
  int64_t bytes = 0;
  std::string device = {};  // where; empty: on the host
  std::string owner = {};   // only this one's values can help; empty: those of all
};

absl::Status HandleStore::WithRoom(const std::function<Wish()>& take) {
  Wish taken = take();
  if (options_.spill == nullptr || !absl::IsResourceExhausted(taken.status)) return taken.status;
  const HandleBudget::Limits& limits = options_.budget;
  if (taken.bytes > std::min(limits.bytes, limits.bytes_per_owner)) return taken.status;  // whatever others give up
  const std::string own_bound = HandlePool(limits).identity_flag;
  absl::MutexLock room(&room_mu_);
  for (bool moved = true; moved;) {
    taken = take();  // another may have made room meanwhile
    if (!absl::IsResourceExhausted(taken.status)) break;
    // More than this one needs, so that not each of the next ones looks for values.
    const int64_t bytes = std::max(taken.bytes, limits.bytes / kShareAtOnce);
    const bool own =
        ValuesOf(taken.status)["limit"] == own_bound || BytesOf(taken.owner) + taken.bytes > limits.bytes_per_owner;
    moved = MakeRoom({.bytes = bytes, .owner = own ? taken.owner : ""});
  }
  return taken.status;
}

int64_t HandleStore::BytesOf(const std::string& owner) const {
  absl::MutexLock lock(&mu_);
  const auto owned = owners_.find(owner);
  int64_t bytes = 0;
  if (owned == owners_.end()) return bytes;
  for (const auto& [serial, entry] : owned->second) bytes += entry->held.bytes();
  return bytes;
}

absl::StatusOr<HandleContent> HandleStore::Place(const HandleId& id, HandleContent content) {
  std::shared_ptr<const HeldValues> held = HeldIn(content);
  if (held == nullptr) return content;
  if (const std::vector<DeviceBudget::Place> places = DeviceBudget::PlacesOf(*held); !places.empty()) {
    std::shared_ptr<const HeldValues> there = devices_.Count(*held, places);
    if (there == nullptr) {
      absl::MutexLock room(&room_mu_);
      bool moved = true;
      for (auto excess = devices_.Excess(places); excess.has_value() && moved; excess = devices_.Excess(places)) {
        moved = MakeRoom({.bytes = excess->bytes, .device = excess->device});
      }
      there = devices_.Count(*held, places);
    }
    if (there == nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(HeldValues on_host, OnHost(*held));
      there = std::make_shared<const HeldValues>(std::move(on_host));
    }
    held = there;
    content = std::move(there);
  }
  if (options_.spill == nullptr) return content;
  // Where it still does not fit, the end of the handle says so.
  WithRoom([&, bytes = HostBytes(content)]() -> Wish {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second->result.has_value()) return {};  // it is dropped, or small
    HandleEntry& entry = *found->second;
    const int64_t more = bytes - entry.held.bytes();
    return {.status = more <= 0 ? absl::OkStatus() : Recharge(entry, bytes), .bytes = more, .owner = entry.owner};
  }).IgnoreError();
  return content;
}

bool HandleStore::MakeRoom(const Shortage& shortage) {
  int64_t moved = 0;
  Guarded("room for results", [&] {
    for (const auto& [entry, bytes] : ValuesToMove(shortage)) {
      if (moved >= shortage.bytes) break;
      const absl::Status status = Move(entry, shortage);
      if (status.ok()) {
        moved += bytes;
        continue;
      }
      LogWarning(
          "a result keeps its place, though others need it",
          {{"handle", ToString(entry->name)}, {"reason", ReasonOf(status)}, {"error", std::string(status.message())}});
      if (shortage.device.empty())
        break;  // the folder would refuse the next one, too; on the host it is another owner's
    }
  }).IgnoreError();
  return moved > 0;
}

bool HandleStore::MayMove(const HandleEntry& entry, const Shortage& shortage) const {
  if (!entry.live || !entry.result.has_value() || !entry.result->ok()) return false;
  const std::shared_ptr<const HeldValues> held = HeldIn(**entry.result);
  if (held == nullptr || IsUsedElsewhere(*held)) return false;
  if (entry.shares == nullptr) {
    if (entry.pins > 0) return false;
  } else {
    if (entry.shares->charged != &entry) return false;  // one of them stands for all
    for (const auto& [serial, holder] : entry.shares->holders) {
      if (holder->pins > 0) return false;
    }
  }
  if (!shortage.device.empty()) return BytesOn(shortage.device, *held) > 0;
  if (!DeviceBudget::PlacesOf(*held).empty()) return false;
  return (shortage.owner.empty() || entry.owner == shortage.owner) && TensorsOnHost(*held) >= kLeastFileBytes;
}

std::vector<std::pair<HandleStore::EntryPointer, int64_t>> HandleStore::ValuesToMove(const Shortage& shortage) const {
  std::vector<std::pair<EntryPointer, int64_t>> values;
  int64_t sum = 0;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, entry] : entries_) {
    if (!MayMove(*entry, shortage)) continue;
    const std::shared_ptr<const HeldValues> held = HeldIn(**entry->result);
    const int64_t bytes = shortage.device.empty() ? TensorsOnHost(*held) : BytesOn(shortage.device, *held);
    values.emplace_back(entry, bytes);
    sum += bytes;
  }
  if (sum < shortage.bytes && !shortage.device.empty()) values.clear();  // all of them would not be enough
  std::sort(values.begin(), values.end(),
            [](const auto& a, const auto& b) { return a.first->last_use < b.first->last_use; });
  return values;
}

absl::Status HandleStore::Move(const EntryPointer& entry, const Shortage& shortage) {
  std::shared_ptr<const HeldValues> before;
  {
    absl::MutexLock lock(&mu_);
    if (!MayMove(*entry, shortage)) return absl::OkStatus();
    before = HeldIn(**entry->result);
  }
  HeldValues moved;
  if (!shortage.device.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(moved, OnHost(*before));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(moved, options_.spill->Put(*before));
  }
  auto after = std::make_shared<const HeldValues>(std::move(moved));
  const auto put = [&]() -> absl::Status {
    absl::MutexLock lock(&mu_);  // `before` outlives it, and with it what the old values hold
    if (!MayMove(*entry, shortage) || HeldIn(**entry->result) != before) return absl::OkStatus();
    PENSTOCK_RETURN_IF_ERROR(Recharge(*entry, HostBytes(after)));
    if (entry->shares == nullptr) {
      *entry->result = after;
    } else {
      for (const auto& [serial, holder] : entry->shares->holders) *holder->result = after;
    }
    return absl::OkStatus();
  };
  absl::Status done = put();
  if (!absl::IsResourceExhausted(done) || options_.spill == nullptr) return done;
  // The host has no room either.
  PENSTOCK_ASSIGN_OR_RETURN(moved, options_.spill->Put(*after));
  after = std::make_shared<const HeldValues>(std::move(moved));
  return put();
}

}  // namespace penstock
