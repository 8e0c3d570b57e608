#include "engine/base/timer_queue.h"

#include <limits>

#include "engine/base/clock.h"
#include "engine/base/guard.h"
#include "engine/base/thread.h"

namespace penstock {

TimerQueue::TimerQueue(Clock* clock)
    : clock_(clock), thread_(std::make_unique<Thread>("ps-timer", [this] { Run(); })) {}

TimerQueue::~TimerQueue() {
  Entries dropped;  // destroyed outside of the lock
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    dropped.swap(timers_);
  }
  thread_->Join();
}

TimerQueue::TimerId TimerQueue::Add(int64_t at_nanos, std::function<void()> run) {
  absl::MutexLock lock(&mu_);
  const TimerId id = {at_nanos, ++added_};
  if (!closed_) timers_.emplace(id, Entry{.run = std::move(run)});
  return id;
}

bool TimerQueue::Remove(TimerId id) {
  std::function<void()> removed;  // destroyed outside of the lock
  absl::MutexLock lock(&mu_);
  auto found = timers_.find(id);
  if (found == timers_.end()) return false;
  removed = std::move(found->second.run);
  timers_.erase(found);
  return true;
}

void TimerQueue::Quiesce() {
  absl::MutexLock lock(&mu_);
  const uint64_t turn = turns_;
  auto passed = [this, turn] {
    mu_.AssertReaderHeld();
    return !running_ || turns_ != turn;
  };
  mu_.Await(absl::Condition(&passed));
}

void TimerQueue::SettleForTest() {
  absl::MutexLock lock(&mu_);
  auto settled = [this] {
    mu_.AssertReaderHeld();
    return !running_ && (timers_.empty() || timers_.begin()->first.first > clock_->NowNanos());
  };
  mu_.Await(absl::Condition(&settled));
}

int64_t TimerQueue::size() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(timers_.size());
}

TimerQueue::Alarm::Alarm(TimerQueue* queue, std::function<void()> run) : queue_(queue), run_(std::move(run)) {
  Entries one;
  one.emplace(kNoTimer, Entry{.run = nullptr, .alarm = this});
  absl::MutexLock lock(&queue_->mu_);
  place_ = one.extract(one.begin());
}

void TimerQueue::Alarm::Set(int64_t at_nanos) {
  absl::MutexLock lock(&queue_->mu_);
  TakePlace();
  if (place_.empty()) return;  // the queue ends
  id_ = {at_nanos, ++queue_->added_};
  place_.key() = id_;
  queue_->timers_.insert(std::move(place_));
}

void TimerQueue::Alarm::Clear() {
  absl::MutexLock lock(&queue_->mu_);
  TakePlace();
}

void TimerQueue::Alarm::TakePlace() {
  if (place_.empty()) place_ = queue_->timers_.extract(id_);
}

bool TimerQueue::HeadChanged() const { return closed_ || timers_.empty() || timers_.begin()->first != awaited_; }

void TimerQueue::Run() {
  absl::MutexLock lock(&mu_);
  auto some = [this] {
    mu_.AssertReaderHeld();
    return closed_ || !timers_.empty();
  };
  while (true) {
    mu_.Await(absl::Condition(&some));
    if (closed_) return;
    awaited_ = timers_.begin()->first;
    if (awaited_.first > clock_->NowNanos()) {
      // A timer that is added before the awaited one, or the removal of it, ends the wait early.
      clock_->AwaitUntil(&mu_, absl::Condition(this, &TimerQueue::HeadChanged), awaited_.first);
      continue;
    }
    Entries::node_type due = timers_.extract(timers_.begin());
    running_ = true;
    const std::function<void()>* run = &due.mapped().run;
    if (Alarm* const alarm = due.mapped().alarm; alarm != nullptr) {
      alarm->queue_->mu_.AssertHeld();  // it is this one's
      run = &alarm->run_;
      alarm->place_ = std::move(due);
    }
    mu_.Unlock();
    Guarded("a timer", *run).IgnoreError();
    due = {};
    mu_.Lock();
    running_ = false;
    ++turns_;
  }
}

}  // namespace penstock
