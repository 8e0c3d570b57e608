#include "engine/base/turn_thread.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

thread_local const void* this_worker = nullptr;  // whose thread this is

}  // namespace

TurnThread::TurnThread(std::string name, TimerQueue* timers, Clock* clock)
    : name_(std::move(name)), timers_(timers), clock_(clock) {
  workers_.push_back(MakeWorker());
}

std::shared_ptr<TurnThread::Worker> TurnThread::MakeWorker() const {
  auto worker = std::make_shared<Worker>();
  worker->thread = std::make_unique<JobThread>(name_);
  return worker;
}

void TurnThread::Post(std::function<void()> job) {
  std::vector<std::shared_ptr<Worker>> over;  // late ones that have ended; joined outside of the lock
  absl::MutexLock lock(&mu_);
  if (closed_) return;
  Worker* const worker = workers_.back().get();
  over.reserve(workers_.size());
  worker->thread->Post([this, worker] { RunNext(worker); });  // before the job: a turn too many does nothing
  jobs_.push_back(std::move(job));
  const auto first = std::stable_partition(workers_.begin(), workers_.end() - 1,
                                           [](const std::shared_ptr<Worker>& one) { return one->busy; });
  std::move(first, workers_.end() - 1, std::back_inserter(over));
  workers_.erase(first, workers_.end() - 1);
}

void TurnThread::RunNext(Worker* worker) {
  std::function<void()> job;
  {
    absl::MutexLock lock(&mu_);
    if (workers_.back().get() != worker || jobs_.empty()) return;  // the turn was passed on, and the jobs with it
    job = std::move(jobs_.front());
    jobs_.pop_front();
    worker->busy = true;
  }
  this_worker = worker;
  const absl::Cleanup end = [&] {
    absl::MutexLock lock(&mu_);
    worker->busy = false;
    timers_->Remove(std::exchange(worker->late, TimerQueue::kNoTimer));
  };
  job();
}

void TurnThread::HoldTurn(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(workers_.begin(), workers_.end(),
                                  [](const std::shared_ptr<Worker>& one) { return one.get() == this_worker; });
  if (found == workers_.end()) return;
  Worker* const worker = found->get();
  timers_->Remove(std::exchange(worker->late, TimerQueue::kNoTimer));
  if (time == absl::InfiniteDuration()) return;
  worker->late =
      timers_->Add(clock_->NowNanos() + absl::ToInt64Nanoseconds(time), [this, worker] { PassTurn(worker); });
}

void TurnThread::PassTurn(const Worker* late) {
  std::shared_ptr<Worker> next = MakeWorker();  // joined outside of the lock if it is not needed
  absl::MutexLock lock(&mu_);
  if (closed_ || workers_.back().get() != late || !late->busy) return;
  LogWarning("a job is late; those behind it go on beside it", {{"thread", name_}});
  for (size_t i = 0; i < jobs_.size(); ++i) {
    next->thread->Post([this, worker = next.get()] { RunNext(worker); });
  }
  workers_.push_back(std::move(next));
}

void TurnThread::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  // From now on no worker comes or goes.
  std::vector<std::shared_ptr<Worker>> workers;
  {
    absl::MutexLock lock(&mu_);
    workers = workers_;
  }
  for (const std::shared_ptr<Worker>& worker : workers) {
    worker->thread->Close();
    timers_->Remove(std::exchange(worker->late, TimerQueue::kNoTimer));
  }
  timers_->Quiesce();
}

}  // namespace penstock
