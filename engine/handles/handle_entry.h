#pragma once

// What a HandleStore keeps of one handle, and what it owes once its lock is free. Private to the store.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/guard.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_store.h"

namespace penstock {

// A call back that comes when several pinned contents are settled.
struct ContentWait {
  int64_t remaining = 0;
  std::function<void()> callback;
};

// One handle. `name`, `owner`, `kind`, `method`, `create_time`, `serial` and `counts` never change; the rest is guarded
// by the store's lock.
struct HandleEntry {
  HandleName name;
  std::string owner;
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
  int64_t bytes = 0;  // as charged: expected, then held
  int64_t pins = 0;
  int64_t lease_nanos = 0;
  int64_t expire_nanos = 0;
  TimerQueue::TimerId timer = TimerQueue::kNoTimer;
  std::shared_ptr<HandleProducer> producer;  // until it settles
  std::set<HandleStore::WaitId> waits;
  std::vector<std::shared_ptr<ContentWait>> content_waits;
};

// What must not happen under the store's lock: callbacks, and the end of tensors, graphs and producers. It is declared
// before the lock is taken, so that it runs after the lock is free.
struct HandleStore::Aftermath {
  Aftermath() = default;
  Aftermath(const Aftermath&) = delete;
  ~Aftermath() { Run(); }

  void Keep(absl::StatusOr<HandleContent> content) { contents.push_back(std::move(content)); }
  void Run() {
    for (const auto& [producer, id] : abandoned) {
      Guarded("the end of a producer", [&, &producer = producer, &id = id] { producer->Abandon(id); }).IgnoreError();
    }
    for (const auto& callback : callbacks) Guarded("a wait for handles", callback).IgnoreError();
    abandoned.clear();
    callbacks.clear();
    producers.clear();
    contents.clear();
  }

  std::vector<std::pair<std::shared_ptr<HandleProducer>, HandleId>> abandoned;
  std::vector<std::function<void()>> callbacks;
  std::vector<std::shared_ptr<HandleProducer>> producers;
  std::vector<absl::StatusOr<HandleContent>> contents;
};

}  // namespace penstock
