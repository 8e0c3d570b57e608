#pragma once

// Mixed precision on the thread that runs a stage: set anew for each pass, so that a recomputation runs as its forward
// did.

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace penstock {

// Turns LibTorch's autocast on for one device type while it lives, with its weight cache off: a cast weight that stayed
// from another pass would tie graphs of different micro-batches together.
//
// Threads:   made and destroyed on one thread.
class AutocastGuard {
 public:
  // `type`: what operators compute in; nothing: as the thread is.
  AutocastGuard(c10::DeviceType device, std::optional<c10::ScalarType> type);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const c10::DeviceType device_;
  const bool active_;
  bool was_enabled_ = false;
  bool was_cached_ = false;
  c10::ScalarType was_type_ = c10::ScalarType::Float;
};

}  // namespace penstock
