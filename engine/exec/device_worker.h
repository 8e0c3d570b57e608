#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"
#include "engine/device/device.h"
#include "engine/exec/stage_executor.h"

namespace penstock {

// The thread of one device: runs whichever of its lanes' next actions is ready.
//
// Model:     a list of executors. Among the ready ones the least recently served goes first, so that inference beside
//            training, and pipelines beside each other, all get on.
// Owns:      a share of each executor until it is done.
// Threads:   Add(), Wake() and busy() from any thread; PollOnce() and Ready() only in serial mode, from one thread at a time.
// Lifecycle: the destructor stops the thread after the action that runs; nothing may be left to do by then.
class DeviceWorker {
 public:
  // `threaded` false: nothing runs but inside PollOnce() and Ready().
  DeviceWorker(const Device& device, bool threaded);
  ~DeviceWorker();

  const Device& device() const { return device_; }
  void Add(std::unique_ptr<StageExecutor> executor) ABSL_LOCKS_EXCLUDED(mu_);
  // Something may have become ready: a message, a grant, an error.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs at most one action; answers whether it did or whether an executor ended.
  bool PollOnce();
  // Whether PollOnce() would find something to do now.
  bool Ready();
  bool busy() const { return busy_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  void TakeNew() ABSL_LOCKS_EXCLUDED(mu_);
  // Drops executors that have ended; answers the place of the first that is ready, or how many there are if none is.
  size_t FindReady(bool& ended);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !woken_ && !stop_; }

  const Device device_;
  std::atomic<bool> busy_ = false;
  std::atomic<uint64_t> wakes_ = 0;  // so that a spinning worker needs no lock

  std::vector<std::unique_ptr<StageExecutor>> executors_;  // the device's thread only; least recently served first

  absl::Mutex mu_;
  absl::CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<StageExecutor>> new_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
