#pragma once

// The only place that starts threads. Each has a name that logs, traces and debuggers show, and may be pinned to cores.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace penstock {

// A named thread that is joined by its destructor.
//
// Threads:   the owner's only.
// Lifecycle: runs `body` at once; Join() may be called twice; the destructor joins.
// Fails:     an exception that leaves `body` ends the thread, not the process: status() has its error (guard.h).
// Units:     `cores` are CPU numbers as the kernel counts them; empty means unpinned. Linux keeps 15 characters of a
//            name.
class Thread {
 public:
  Thread(std::string name, std::function<void()> body, std::vector<int> cores = {});
  ~Thread();
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void Join();
  // How `body` has ended; after Join().
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;  // the thread's until it is joined
  std::thread thread_;   // last: it uses all of the above
};

// Pins the calling thread. FAILED_PRECONDITION if the kernel refuses, naming the cores.
absl::Status PinThisThread(const std::vector<int>& cores);

// The cores that this process may use, in ascending order.
std::vector<int> UsableCores();

}  // namespace penstock
