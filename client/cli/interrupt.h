#pragma once

// Ctrl-C: the first cancels and releases, the second leaves at once.

#include <atomic>
#include <functional>
#include <memory>

#include "engine/base/thread.h"

namespace penstock {

// Turns SIGINT, SIGTERM, SIGQUIT and SIGHUP (unless it is ignored, as under nohup) into one call of `on_first`, and
// says so on the process's stderr: past the stream, which the command's thread may be writing to.
//
// Threads:   `on_first` runs on a thread of its own (`ps-interrupt`), at most once.
// Lifecycle: BlockSignals() before any other thread starts, or a thread of a library takes them. A second signal gives
//            the terminal back and ends the process with code 130.
class Interrupt {
 public:
  // Blocks the signals in this thread and in those that it starts from now on.
  static void BlockSignals();

  explicit Interrupt(std::function<void()> on_first);
  ~Interrupt();

 private:
  std::atomic<bool> closing_ = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace penstock
