#include "engine/serve/inference_times.h"

namespace penstock {

void InferenceTimes::Add(Spent& spent, int64_t infer_nanos, int64_t output_nanos) {
  ++spent.count;
  spent.infer_nanos += infer_nanos;
  spent.output_nanos += output_nanos;
}

void InferenceTimes::RunBegan(absl::Time now) {
  absl::MutexLock lock(&mu_);
  sums_.last_run = now;
}

void InferenceTimes::CallEnded(int64_t infer_nanos, int64_t output_nanos) {
  absl::MutexLock lock(&mu_);
  Add(sums_.calls, infer_nanos, output_nanos);
}

void InferenceTimes::RunEnded(int64_t rows, int64_t infer_nanos, int64_t output_nanos) {
  absl::MutexLock lock(&mu_);
  auto found = sums_.runs.find(rows);
  if (found == sums_.runs.end()) {
    if (sums_.runs.size() >= kSizes) return;
    found = sums_.runs.emplace(rows, Spent()).first;
  }
  Add(found->second, infer_nanos, output_nanos);
}

void InferenceTimes::Reset() {
  absl::MutexLock lock(&mu_);
  sums_ = {};
}

InferenceTimes::Snapshot InferenceTimes::now() const {
  absl::MutexLock lock(&mu_);
  return sums_;
}

}  // namespace penstock
