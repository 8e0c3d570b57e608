#include "engine/plan/measured_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

constexpr int64_t kClaimStep = int64_t{64} << 20;  // claimed in advance, where it is left

}  // namespace

MeasuredMemory::~MeasuredMemory() {
  if (claim_) claim_(0).IgnoreError();
}

absl::Status MeasuredMemory::Claim(int64_t bytes) {
  PENSTOCK_RETURN_IF_ERROR(planning_->CheckWanted());
  if (!claim_) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  if (bytes <= claimed_) return absl::OkStatus();
  int64_t wanted = bytes + kClaimStep;
  if (!claim_(wanted).ok()) {
    wanted = bytes;
    PENSTOCK_RETURN_IF_ERROR(claim_(wanted));
  }
  claimed_ = wanted;
  return absl::OkStatus();
}

void MeasuredMemory::reportMemoryUsage(void* block, int64_t change, size_t, size_t, c10::Device device) {
  if (!device.is_cpu()) return;
  const int64_t live = live_ += change;
  if (change <= 0) return;
  absl::Status claimed = Claim(live);
  if (claimed.ok()) return;
  live_ -= change;
  c10::free_cpu(block);  // nobody else knows of it yet
  ThrowStatus(std::move(claimed));
}

}  // namespace penstock
