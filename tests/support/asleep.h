#pragma once

// Whether another thread waits for something, as Linux says: what a test needs to see that somebody waits, and goes on.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace penstock::testing {

// The thread that calls Begin(), seen from another one.
class Watched {
 public:
  void Begin() { thread_ = gettid(); }
  // Returns once the thread sleeps, or `ended` is notified.
  void AwaitSleep(const absl::Notification& ended) const {
    while (!ended.HasBeenNotified() && !IsAsleep()) std::this_thread::yield();
  }

 private:
  bool IsAsleep() const {
    if (thread_ == 0) return false;
    std::ifstream file(absl::StrCat("/proc/self/task/", thread_.load(), "/stat"));
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const size_t name_end = text.rfind(')');  // a name may hold anything
    return name_end != std::string::npos && text.compare(name_end, 3, ") S") == 0;
  }

  std::atomic<pid_t> thread_ = 0;
};

}  // namespace penstock::testing
