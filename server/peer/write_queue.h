#pragma once

// What is to be written to a stream of gRPC, which takes one message at a time and then its end.

#include <algorithm>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// Says what the stream does next: write a message, or end. The caller does so at once, without a lock.
//
// Model:     the first message is on its way; the end comes once, when none is left.
// Threads:   any method from any thread.
// Lifecycle: Push() at will; Written() after each write; Close(), after which messages are dropped.
template <typename Message>
class WriteQueue {
 public:
  struct Step {
    const Message* write = nullptr;  // stays until Written()
    bool end = false;
  };

  Step Push(Message message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return {};
    messages_.push_back(std::move(message));
    return {.write = messages_.size() == 1 ? &messages_.front() : nullptr};
  }

  // These follow one another; nothing comes between but what is urgent.
  Step PushAll(std::vector<Message> messages) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_ || messages.empty()) return {};
    const bool idle = messages_.empty();
    std::move(messages.begin(), messages.end(), std::back_inserter(messages_));
    return {.write = idle ? &messages_.front() : nullptr};
  }

  // Before all that is not on its way yet.
  Step PushUrgent(Message message) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_) return {};
    messages_.insert(messages_.empty() ? messages_.begin() : std::next(messages_.begin()), std::move(message));
    return {.write = messages_.size() == 1 ? &messages_.front() : nullptr};
  }

  // Not ok: the stream is broken, and takes none of the others.
  Step Written(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    messages_.pop_front();
    if (!ok) messages_.clear();
    if (!messages_.empty()) return {.write = &messages_.front()};
    return {.end = TakeEnd()};
  }

  Step Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    return {.end = TakeEnd()};
  }

 private:
  bool TakeEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ && messages_.empty() && !std::exchange(ended_, true);
  }

  absl::Mutex mu_;
  std::list<Message> messages_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
