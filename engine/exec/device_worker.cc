#include "engine/exec/device_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/device/device.h"

namespace penstock {
namespace {

// How long a worker looks again before it sleeps. Waking a sleeper costs more than most waits between two stages last.
constexpr int64_t kSpinNanos = 20'000;

}  // namespace

DeviceWorker::DeviceWorker(const Device& device, bool threaded) : device_(device) {
  if (!threaded) return;
  std::string name = absl::StrCat("ps-", device_.name);
  std::replace(name.begin(), name.end(), ':', '-');
  thread_ = std::make_unique<Thread>(
      name,
      [this] {
        UseCores(device_);
        Loop();
      },
      device_.cores);
}

DeviceWorker::~DeviceWorker() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    changed_.Signal();
  }
  thread_.reset();
}

void DeviceWorker::Add(std::unique_ptr<StageExecutor> executor) {
  absl::MutexLock lock(&mu_);
  new_.push_back(std::move(executor));
  woken_ = true;
  wakes_.fetch_add(1, std::memory_order_release);
  if (sleeping_) changed_.Signal();
}

void DeviceWorker::Wake() {
  absl::MutexLock lock(&mu_);
  woken_ = true;
  wakes_.fetch_add(1, std::memory_order_release);
  if (sleeping_) changed_.Signal();
}

void DeviceWorker::TakeNew() {
  absl::MutexLock lock(&mu_);
  woken_ = false;
  for (auto& executor : new_) executors_.push_back(std::move(executor));
  new_.clear();
}

size_t DeviceWorker::FindReady(bool& ended) {
  TakeNew();
  size_t i = 0;
  while (i < executors_.size()) {
    switch (executors_[i]->Poll()) {
      case StageExecutor::Readiness::kReady:
        return i;
      case StageExecutor::Readiness::kWaiting:
        ++i;
        break;
      case StageExecutor::Readiness::kDone:
        executors_.erase(executors_.begin() + static_cast<std::ptrdiff_t>(i));
        ended = true;
    }
  }
  return i;
}

bool DeviceWorker::Ready() {
  bool ended = false;
  return FindReady(ended) < executors_.size() || ended;
}

bool DeviceWorker::PollOnce() {
  bool ended = false;
  const size_t i = FindReady(ended);
  if (i == executors_.size()) return ended;
  StageExecutor& executor = *executors_[i];
  busy_.store(true, std::memory_order_relaxed);
  for (auto& other : executors_) {
    if (&other->lane() != &executor.lane()) other->lane().state.DeviceTaken(true);
  }
  executor.Execute();
  busy_.store(false, std::memory_order_relaxed);
  for (auto& other : executors_) {
    if (&other->lane() != &executor.lane()) other->lane().state.DeviceTaken(false);
  }
  // Served: to the end of the row.
  std::rotate(executors_.begin() + static_cast<std::ptrdiff_t>(i),
              executors_.begin() + static_cast<std::ptrdiff_t>(i) + 1, executors_.end());
  return true;
}

void DeviceWorker::Loop() {
  Clock* clock = RealClock();
  while (true) {
    if (PollOnce()) continue;
    if (!executors_.empty()) {
      const uint64_t seen = wakes_.load(std::memory_order_acquire);
      const int64_t until = clock->NowNanos() + kSpinNanos;
      while (wakes_.load(std::memory_order_acquire) == seen && clock->NowNanos() < until) {
        __builtin_ia32_pause();
      }
    }
    absl::MutexLock lock(&mu_);
    sleeping_ = true;
    while (Idle()) changed_.Wait(&mu_);
    sleeping_ = false;
    if (stop_) return;
  }
}

}  // namespace penstock
