#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"
#include "engine/device/device.h"
#include "engine/exec/stage_executor.h"
#include "engine/filling/gap_filler.h"

namespace penstock {

// The thread of one device: runs whichever of its lanes' next actions is to go first.
//
// Model:     two lists of executors. Training goes before inference; among ready training executors the least recently
//            served goes first, so that pipelines beside each other all get on. While all training waits, a GapFiller
//            says which inference action, if any, the gap holds. Only a run that is due (inference_turns.h) goes before
//            training.
// Owns:      a share of each executor until it is done.
// Threads:   Add(), Wake() and busy() from any thread; PollOnce() and Ready() only in serial mode, from one thread at a
//            time.
// Lifecycle: the destructor stops the thread after the action that runs; nothing may be left to do by then.
class DeviceWorker {
 public:
  // How the thread waits while there is nothing to do.
  enum class IdlePolicy {
    kForCalls,   // there is no thread: actions run only inside PollOnce() and Ready()
    kAsleep,     // for devices that share a core: a spinning thread keeps the others from working
    kSpinsFirst  // a few us; waking a sleeper costs more than most waits between two stages last
  };
  DeviceWorker(const Device& device, IdlePolicy waits);
  ~DeviceWorker();

  const Device& device() const { return device_; }
  // Takes the executors of the list, and can't fail: of a run, all lanes begin or none.
  using NewExecutors = std::list<std::unique_ptr<StageExecutor>>;
  void Add(NewExecutors executors) ABSL_LOCKS_EXCLUDED(mu_);
  // Something may have become ready: a message, a grant, an error.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs at most one action; returns whether it did or whether an executor ended.
  bool PollOnce();
  // Whether PollOnce() would find something to do now.
  bool Ready();
  // For serial mode: waits until an accelerator has done some of what was launched on it; false if nothing is
  // outstanding.
  bool AwaitAccelerator();
  bool busy() const { return busy_.load(std::memory_order_relaxed); }

 private:
  using Executors = std::vector<std::unique_ptr<StageExecutor>>;

  void Loop();
  void TakeNew() ABSL_LOCKS_EXCLUDED(mu_);
  // What goes next; choosing takes no turn.
  struct Choice {
    StageExecutor* executor = nullptr;  // null: nothing is ready
    size_t training = 0;                // its place among the training executors, if it is one
    int64_t charge = 0;        // nanoseconds that its pipeline's inference is charged for going before training
    int64_t ends_at = kNever;  // of an inference, expected
  };
  // Drops executors that have ended.
  Choice Choose(bool& ended);
  // Counts the turn of what was chosen.
  void TakeTurn(const Choice& choice);
  // The place of the first training executor that is ready, or how many there are if none is.
  size_t FindTraining(bool& ended);
  Choice ChooseInference(bool training_ready, bool& ended);
  bool BesideTraining(const BubbleFilling& filling, int64_t now) const;
  // Looks again soon where marks are unread: devices do not report that they have passed an event.
  void NoteUnread();
  void TellOthers(StageExecutor& running, bool taken);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !woken_ && !stop_; }

  const Device device_;
  const IdlePolicy waits_;
  std::atomic<bool> busy_ = false;
  std::atomic<uint64_t> wakes_ = 0;  // so that neither a look nor a spinning worker needs a lock

  // The device's thread only.
  Executors training_;   // least recently served first
  Executors inference_;  // in order of arrival
  uint64_t taken_ = 0;   // of the wakes: nothing is new until there are more
  GapFiller filler_;
  std::vector<InferenceCandidate> candidates_;  // of the last look, and whose they are
  std::vector<StageExecutor*> owners_;
  std::vector<InferenceArrival> arrivals_;  // of the last look
  int64_t look_again_at_ = kNever;          // when the answer may be another without an event

  absl::Mutex mu_;
  absl::CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;
  NewExecutors new_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
