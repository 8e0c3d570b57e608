#pragma once

// What measuring takes of the host's memory.

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/plan/planning.h"

namespace penstock {

// Claims what threads allocate while they measure, and ends what nobody wants any more, between two allocations.
//
// Model:     LibTorch reports each block before it is used to the thread's MemoryReportingInfoBase, set by
//            c10::DebugInfoGuard. Where the claim for it is refused, or the plan was given up, the block goes back, no
//            page of it touched, and the allocation throws. Layers of all kinds allocate with every operator.
// Threads:   of several threads at once, whose bytes are one sum.
// Lifecycle: the destructor claims nothing any more.
// Fails:     an allocation throws (RunTorch) what `claim` fails with; CANCELLED / WORK_CANCELLED.
class MeasuredMemory : public c10::MemoryReportingInfoBase {
 public:
  // `claim` is called with all bytes that are wanted, and may be empty. `planning` must outlive the measurement.
  MeasuredMemory(std::function<absl::Status(int64_t)> claim, const Planning* planning)
      : claim_(std::move(claim)), planning_(planning) {}
  ~MeasuredMemory() override;

  void reportMemoryUsage(void* block, int64_t change, size_t, size_t, c10::Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }

 private:
  absl::Status Claim(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<absl::Status(int64_t)> claim_;
  const Planning* const planning_;
  std::atomic<int64_t> live_ = 0;

  absl::Mutex mu_;
  int64_t claimed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
