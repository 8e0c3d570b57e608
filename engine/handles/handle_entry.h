#pragma once

// What a HandleStore keeps of one handle, and what it owes once its lock is free. Private to the store.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/guard.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_store.h"
#include "engine/ledger/memory_ledger.h"

namespace penstock {

// What the content takes of the host's memory.
int64_t HostBytes(const HandleContent& content);

// A call back that comes when several pinned contents are settled.
struct ContentWait {
  int64_t remaining = 0;
  std::function<void()> callback;
};

struct HandleEntry;

// The handles of the same bytes. Guarded by the store's lock.
//
// Model:     Those that still hold the content, the oldest first. One is charged for it: the oldest that is live; when
//            none is any more, the one that was charged last, or else the oldest that is pinned.
struct HandleShares {
  std::map<uint64_t, HandleEntry*> holders;  // by serial
  HandleEntry* charged = nullptr;            // one of them
};

// One handle. `name`, `owner`, `counted_for`, `kind`, `method`, `create_time`, `serial` and `counts` never change; the
// rest is guarded by the store's lock.
struct HandleEntry {
  HandleName name;
  std::string owner;
  std::string counted_for;  // whose number of handles it adds to: the owner's, or of a share that of who shared
  HandleKind kind = HandleKind::kValue;
  std::string method;
  absl::Time create_time;
  uint64_t serial = 0;
  std::shared_ptr<HandleStore::Counts> counts;  // of its pipeline

  HandleState state = HandleState::kPending;            // as its owner sees it
  bool live = true;                                     // in the store's maps; else only pins know it
  std::optional<absl::StatusOr<HandleContent>> result;  // unset while no producer has come to an end
  std::vector<TensorHeader> tensors;
  std::vector<std::string> values;  // names of what is no tensor
  std::optional<CallOutcome> outcome;
  MemoryReservation held;                // expected, then held; of shares only one holds the bytes
  std::shared_ptr<HandleShares> shares;  // null: it was never shared
  int64_t pins = 0;
  uint64_t last_use = 0;  // rises with each use of any handle
  int64_t lease_nanos = 0;
  int64_t expire_nanos = 0;
  TimerQueue::TimerId timer = TimerQueue::kNoTimer;
  std::shared_ptr<HandleProducer> producer;  // until it settles
  std::set<HandleStore::WaitId> waits;
  std::vector<std::shared_ptr<ContentWait>> content_waits;
};

// What a handle held, to be destroyed under no lock.
struct HandleStore::Freed {
  HandleId id;
  std::optional<absl::StatusOr<HandleContent>> content = {};
  std::shared_ptr<HandleProducer> abandoned = {};  // of a handle that was to be filled

  void Abandon() {
    if (abandoned == nullptr) return;
    Guarded("the end of a producer", [&] { abandoned->Abandon(id); }).IgnoreError();
  }
};

// What must not happen under the store's lock: callbacks, and the end of tensors, graphs and producers. It is declared
// before the lock is taken, so that it runs after the lock is free.
//
// Model:     Who changes an entry makes room here first, so that nothing can fail once the change has begun.
struct HandleStore::Aftermath {
  explicit Aftermath(HandleStore* store) : store(store) {}
  Aftermath(const Aftermath&) = delete;
  ~Aftermath() { Run(); }

  void Keep(absl::StatusOr<HandleContent> content) { contents.push_back(std::move(content)); }
  // For one more entry, with so many waits for its content.
  void MakeRoom(size_t content_waits) {
    Grow(freed, 1);
    Grow(callbacks, content_waits);
    Grow(producers, 1);
    Grow(contents, 1);
  }
  void Run() {
    for (Freed& one : freed) one.Abandon();
    for (auto& [id, wait] : waits) store->TellWait(wait);
    for (const auto& callback : callbacks) Guarded("a wait for contents", callback).IgnoreError();
    freed.clear();
    waits.clear();
    callbacks.clear();
    producers.clear();
    contents.clear();
  }

  HandleStore* const store;
  std::vector<Freed> freed;
  std::map<WaitId, Wait> waits;  // moved here node by node
  std::vector<std::function<void()>> callbacks;
  std::vector<std::shared_ptr<HandleProducer>> producers;
  std::vector<absl::StatusOr<HandleContent>> contents;

 private:
  template <typename T>
  static void Grow(std::vector<T>& vector, size_t more) {
    if (vector.capacity() - vector.size() < more) vector.reserve(2 * vector.size() + more);
  }
};

template <typename Change>
void HandleStore::Count(const HandleEntry& entry, const Change& change) {
  change(total_);
  change(*entry.counts);
  PublishCounts();
}

}  // namespace penstock
