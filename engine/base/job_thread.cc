#include "engine/base/job_thread.h"

#include <utility>

#include "engine/base/guard.h"

namespace penstock {

JobThread::JobThread(std::string name) : thread_(std::make_unique<Thread>(std::move(name), [this] { Run(); })) {}

JobThread::Prepared JobThread::Prepare(std::function<void()> job) {
  Prepared prepared;
  prepared.push_back(std::move(job));
  return prepared;
}

void JobThread::Post(Prepared job) {
  absl::MutexLock lock(&mu_);
  if (!closed_) jobs_.splice(jobs_.end(), job);
}

void JobThread::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  thread_->Join();
}

void JobThread::Run() {
  const auto something = [this] {
    mu_.AssertReaderHeld();
    return closed_ || !jobs_.empty();
  };
  while (true) {
    std::function<void()> job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    Guarded("a job", job).IgnoreError();  // it is in the log; who waits for the job guards what it does
  }
}

}  // namespace penstock
