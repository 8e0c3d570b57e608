#include "engine/serve/served_calls.h"

#include <deque>

#include "engine/base/guard.h"

namespace penstock {

absl::Status ServedCalls::Lose(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu);
    if (!lost.ok()) return lost;
    lost = why;
  }
  if (on_lost) Guarded("what is told of a lost rank", [&] { on_lost(why); }).IgnoreError();
  return why;
}

void ServedCalls::RemoveQueued(const CallPointer& call) {
  Of(call).Enter(Call::Phase::kDone);
  if (call->training.has_value()) {
    training.Remove(call);
  } else {
    inference.Remove(call);
  }
  UpdateQueueMetrics();
}

std::vector<CallPointer> ServedCalls::Waiting() const {
  std::vector<CallPointer> waiting(training.waiting().begin(), training.waiting().end());
  waiting.insert(waiting.end(), inference.waiting().begin(), inference.waiting().end());
  return waiting;
}

void ServedCalls::UpdateQueueMetrics() {
  const std::shared_ptr<PipelineMetrics> metrics = this->metrics();
  if (metrics == nullptr) return;
  const auto update = [](QueueMetrics& counts, const std::deque<CallPointer>& waiting) {
    int64_t depth = 0;
    for (const CallPointer& call : waiting) depth += call->queue_weight;
    counts.depth.Set(static_cast<double>(depth));
    counts.oldest_nanos = waiting.empty() ? QueueMetrics::kEmpty : waiting.front()->accepted_nanos;
  };
  update(metrics->queues[WorkQueue::kTrain], training.waiting());
  update(metrics->queues[WorkQueue::kInfer], inference.waiting());
}

std::vector<std::function<void()>> ServedCalls::TakeDrained() {
  std::vector<std::function<void()>> callbacks;
  if (state != State::kReady && Idle()) callbacks.swap(drained);
  return callbacks;
}

void ServedCalls::CallDrained(const std::vector<std::function<void()>>& callbacks) {
  for (const auto& callback : callbacks) Guarded("the end of a drain", callback).IgnoreError();
}

void ServedCalls::NotifyIfDrained() {
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&mu);
    callbacks = TakeDrained();
  }
  CallDrained(callbacks);
}

}  // namespace penstock
