#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "engine/filling/run_forecast.h"

namespace penstock {

// When the micro-batches of one inference run are expected at its stages: the lane that takes an action tells the lane
// of the stage behind, which then does not begin something long for a run that goes after this one.
//
// Threads:   any method from any thread.
// Units:     nanoseconds of the clock; kNever where nobody has begun the action before, or nobody knows what it takes.
class ExpectedArrivals {
 public:
  ExpectedArrivals(int stages, int micro_batches)
      : micro_batches_(micro_batches), at_(static_cast<size_t>(stages) * static_cast<size_t>(micro_batches)) {
    for (auto& at : at_) at.store(kNever, std::memory_order_relaxed);
  }

  // Nothing is behind the last stage.
  void Expect(StageIndex stage, int micro_batch, int64_t at) {
    const size_t place = PlaceOf(stage, micro_batch);
    if (place < at_.size()) at_[place].store(at, std::memory_order_relaxed);
  }
  int64_t At(StageIndex stage, int micro_batch) const {
    return at_.at(PlaceOf(stage, micro_batch)).load(std::memory_order_relaxed);
  }

 private:
  size_t PlaceOf(StageIndex stage, int micro_batch) const {
    return static_cast<size_t>(stage.value()) * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch);
  }

  const int micro_batches_;
  std::vector<std::atomic<int64_t>> at_;  // by stage, then by micro-batch
};

}  // namespace penstock
