#pragma once

// What the parts of a served pipeline share: its calls, the answers that retries get, and the one lock over them.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/timer_queue.h"
#include "engine/observe/metrics.h"
#include "engine/serve/call.h"
#include "engine/serve/inference_queue.h"
#include "engine/serve/inference_times.h"
#include "engine/serve/request_log.h"
#include "engine/serve/training_queue.h"

namespace penstock {

// The calls of one pipeline that wait and run, and what is known of those that have ended.
//
// Model:     A part of the pipeline reaches what is guarded here, and the guarded half of a call, only with `mu` held;
//            the compiler checks it. The queues are values: a thread that holds `mu` may use them. A part that is
//            called under the lock is handed this, and says by an annotation that it wants `calls.mu`.
// Owns:      the calls, with the handles and threads that they are with. Outlives the parts.
// Threads:   any. Nothing that may call back, the handle store above all, is called under `mu`: its callbacks may need
//            it.
struct ServedCalls {
  enum class State { kReady, kDraining, kDeleting, kUnloading, kStopped };

  ServedCalls(RequestLog<RecordedAnswer> log, TrainingQueue training, InferenceQueue inference,
              std::shared_ptr<PipelineMetrics> metrics)
      : log(std::move(log)),
        training(std::move(training)),
        inference(std::move(inference)),
        metrics_(std::move(metrics)) {}

  // The half of a call that the lock guards.
  Call::Guarded& Of(const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return call->guarded_; }
  Call::Guarded& Of(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return call.guarded_; }

  // Takes a call that waits out of its queue: it is done, and the caller of this ends it.
  void RemoveQueued(const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::vector<CallPointer> Waiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return training.idle() && inference.idle() && unsettled == 0 && !writing;
  }
  void UpdateQueueMetrics() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Returns the callbacks that wait for the end of all accepted work if it has come, else none. CallDrained() calls
  // them, without a lock.
  std::vector<std::function<void()>> TakeDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  static void CallDrained(const std::vector<std::function<void()>>& callbacks);
  void NotifyIfDrained() ABSL_LOCKS_EXCLUDED(mu);

  // What the mini-batches that ended well have left.
  struct Totals {
    int64_t samples_trained = 0;
    std::optional<double> last_loss = {};
    double last_measured_bubble = 0;
  };

  // A function that does nothing once the pipeline is gone, and else keeps it: for timers, handles and graphs, which
  // may outlive it.
  template <typename Body>
  auto WhileItLives(Body body) const {
    return [owner = owner, body = std::move(body)]() mutable {
      if (const auto alive = owner.lock()) body();
    };
  }

  // Notes that a rank is lost, and returns the first such loss. From now on no call runs and none is accepted.
  absl::Status Lose(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);

  // Where counts go now; null: nowhere. An update has others, and sets them while no run is open.
  std::shared_ptr<PipelineMetrics> metrics() const ABSL_LOCKS_EXCLUDED(metrics_mu_) {
    absl::MutexLock lock(&metrics_mu_);
    return metrics_;
  }
  void SetMetrics(std::shared_ptr<PipelineMetrics> metrics) ABSL_LOCKS_EXCLUDED(metrics_mu_) {
    absl::MutexLock lock(&metrics_mu_);
    metrics_.swap(metrics);  // the old ones go after the lock
  }

  InferenceTimes times;                              // goes with the counts
  std::function<void(const absl::Status&)> on_lost;  // told of the first loss, without a lock; may be null
  std::weak_ptr<const void> owner;                   // the pipeline, whose parts use this; set once, before any call

  mutable absl::Mutex mu;
  State state ABSL_GUARDED_BY(mu) = State::kReady;
  absl::Status lost ABSL_GUARDED_BY(mu);      // not OK: a rank is, and calls that have not ended are left as they are
  bool stopping ABSL_GUARDED_BY(mu) = false;  // nothing waits or runs any more, and the threads end
  RequestLog<RecordedAnswer> log ABSL_GUARDED_BY(mu);
  TrainingQueue training ABSL_GUARDED_BY(mu);
  InferenceQueue inference ABSL_GUARDED_BY(mu);
  int64_t unsettled ABSL_GUARDED_BY(mu) = 0;  // calls that have ended, and whose outcome is not durable yet
  // A checkpoint is being written beside the calls behind it: of a save, whose end has not come, or an automatic one.
  bool writing ABSL_GUARDED_BY(mu) = false;
  std::vector<std::function<void()>> drained ABSL_GUARDED_BY(mu);
  TimerQueue::TimerId accumulation_timer ABSL_GUARDED_BY(mu) = TimerQueue::kNoTimer;  // of its lease
  Totals totals ABSL_GUARDED_BY(mu);

 private:
  mutable absl::Mutex metrics_mu_ ABSL_ACQUIRED_AFTER(mu);
  std::shared_ptr<PipelineMetrics> metrics_ ABSL_GUARDED_BY(metrics_mu_);
};

}  // namespace penstock
