#pragma once

// Whether a call that was accepted is durable: what its caller waits for before it may rely on it.

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// An answer that comes once.
//
// Threads:   any; callbacks come on the thread that settles it, or that asks, under no lock.
class Durability {
 public:
  using Callback = std::function<void(const absl::Status&)>;

  // Calls back when it is known; possibly before it returns. An error: the call is not accepted after all.
  void Then(Callback callback) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Status known;
    {
      absl::MutexLock lock(&mu_);
      if (!status_.has_value()) return callbacks_.push_back(std::move(callback));
      known = *status_;
    }
    callback(known);
  }

  // Returns whether it was not known before. The first answer counts.
  bool Settle(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Callback> callbacks;
    {
      absl::MutexLock lock(&mu_);
      if (status_.has_value()) return false;
      status_ = status;
      callbacks.swap(callbacks_);
    }
    for (const Callback& callback : callbacks) callback(status);
    return true;
  }

 private:
  absl::Mutex mu_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mu_);
  std::vector<Callback> callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
