#pragma once

// An interrupt, for those who wait for a file.

namespace penstock {

// Ends waits for descriptors.
//
// Threads:   any method from any thread.
// Lifecycle: after Stop() nobody waits any more.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void Stop();
  bool stopped() const { return !Wait(-1, 0, 0); }

  // Waits for `events` of a descriptor, as poll() has them, at most so many milliseconds; -1: as long as it takes; a
  // descriptor of -1: for nothing else. False once stopped.
  bool Wait(int descriptor, short events, int milliseconds = -1) const;

 private:
  const int stop_;  // an eventfd, readable once stopped
};

}  // namespace penstock
