#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// The latest of some values that do not change: readers keep theirs, later ones get the new one.
//
// Threads:   any method from any thread.
template <typename T>
class Published {
 public:
  std::shared_ptr<const T> Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return value_;
  }
  void Set(T value) ABSL_LOCKS_EXCLUDED(mu_) {
    auto next = std::make_shared<const T>(std::move(value));
    absl::MutexLock lock(&mu_);
    value_.swap(next);  // the old one goes after the lock
  }

 private:
  mutable absl::Mutex mu_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
