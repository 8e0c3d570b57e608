#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/schedule/build.h"

namespace penstock {

// Which passes keep only their input after the forward, for the lists have an R for them: [stage][micro-batch].
using Checkpointed = std::vector<std::vector<bool>>;

// The lists of a run, and what follows from them.
struct ListsOfRun {
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<const Checkpointed> checkpointed;
};

// The verified lists of one pipeline by purpose and real number of micro-batches, built when asked for.
//
// Model:     keeps the kMaxLists that were used last. Lists are built outside of the lock: a thread that waits for one
//            list holds up no other, and two threads that want the same list at once may both build it.
// Threads:   any method from any thread.
class ScheduleBook {
 public:
  // Everything but purpose and micro-batches comes from `request`. `edit`: changes lists that were verified, from any
  // thread; empty: they stay (PipelineEdits).
  explicit ScheduleBook(BuildRequest request, std::function<void(Schedule&)> edit = {})
      : request_(std::move(request)), edit_(std::move(edit)) {}

  static constexpr size_t kMaxLists = 32;

  // Fails:     as BuildSchedule: an imported schedule may have fewer micro-batches than a call asks for.
  absl::StatusOr<ListsOfRun> Find(SchedulePurpose purpose, int micro_batches) ABSL_LOCKS_EXCLUDED(mu_);
  // How many lists it keeps.
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::pair<SchedulePurpose, int> key;
    ListsOfRun lists;
  };

  absl::StatusOr<ListsOfRun> Build(SchedulePurpose purpose, int micro_batches) const;
  // The entry of a key, moved to the front; null if there is none.
  const ListsOfRun* Use(const std::pair<SchedulePurpose, int>& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const BuildRequest request_;
  const std::function<void(Schedule&)> edit_;
  mutable absl::Mutex mu_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mu_);  // used last first
};

}  // namespace penstock
