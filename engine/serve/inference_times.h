#pragma once

// Where the time of inference went, as other servers count it.

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace penstock {

// Times of the runs and calls of inference that succeeded, evaluations apart.
//
// Model:     sums by calls, and by runs of so many rows. A run is what the stages do at once: a batch of calls, or one.
//            kSizes different numbers of rows are kept, the first that come; runs of others are in the sums alone.
// Threads:   any.
// Units:     nanoseconds.
class InferenceTimes {
 public:
  static constexpr size_t kSizes = 256;

  struct Spent {
    int64_t count = 0;
    int64_t infer_nanos = 0;   // from the start of the run to its end on the last stage
    int64_t output_nanos = 0;  // from there until results are told: of a run, those of its last call
  };
  struct Snapshot {
    absl::Time last_run = absl::InfinitePast();
    Spent calls = {};
    std::map<int64_t, Spent> runs = {};  // by rows
  };

  void RunBegan(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void CallEnded(int64_t infer_nanos, int64_t output_nanos) ABSL_LOCKS_EXCLUDED(mu_);
  void RunEnded(int64_t rows, int64_t infer_nanos, int64_t output_nanos) ABSL_LOCKS_EXCLUDED(mu_);
  void Reset() ABSL_LOCKS_EXCLUDED(mu_);
  Snapshot now() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static void Add(Spent& spent, int64_t infer_nanos, int64_t output_nanos);

  mutable absl::Mutex mu_;
  Snapshot sums_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
