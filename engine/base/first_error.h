#pragma once

// Keeps the first error of several threads; later ones are only counted.

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// The first error wins.
//
// Threads:   any method from any thread. Failed() costs one relaxed load.
class FirstError {
 public:
  // Keeps `status` if it is the first error; returns whether it was.
  bool Record(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    if (status.ok()) return false;
    absl::MutexLock lock(&mu_);
    ++count_;
    if (!first_.ok()) return false;
    first_ = std::move(status);
    failed_.store(true, std::memory_order_release);
    return true;
  }

  bool Failed() const { return failed_.load(std::memory_order_acquire); }

  // The first error, or OK.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return first_;
  }

  // How many errors were recorded, the first included.
  int count() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return count_;
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable absl::Mutex mu_;
  absl::Status first_ ABSL_GUARDED_BY(mu_);
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
