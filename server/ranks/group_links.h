#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/device/link.h"

namespace penstock {

// The links between all ranks of a group, each pair measured once in a generation, when somebody first asks; one that
// could not be measured, again when somebody asks the next time.
//
// Model:     rank by rank, each with those of higher numbers, so that no two measurements stand in each other's way.
//            What a rank does not tell of is listed as not measured.
// Threads:   any method from any thread. While one thread measures, others that ask wait for it.
// Units:     nanoseconds. All pairs together take no longer than kGroupBudgetNanos, but for what it takes to ask.
class GroupLinks {
 public:
  static constexpr int64_t kGroupBudgetNanos = 5'000'000'000;

  // The links of one rank to others, measured; blocks. `budget_nanos`: for each of them. Called without a lock.
  using Measure = std::function<std::vector<Link>(Rank rank, const std::vector<Rank>& peers, int64_t budget_nanos)>;
  std::vector<Link> Of(uint32_t generation, int ranks, const Measure& measure) ABSL_LOCKS_EXCLUDED(mu_);

  // What was measured last; it may be of an earlier generation. Empty: nothing was.
  std::vector<Link> known() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  bool measuring_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<uint32_t> generation_ ABSL_GUARDED_BY(mu_);  // that the links are of
  std::vector<Link> links_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
