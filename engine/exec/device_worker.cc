#include "engine/exec/device_worker.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/guard.h"
#include "engine/device/device.h"

namespace penstock {
namespace {

// How long a worker looks again before it sleeps.
constexpr int64_t kSpinNanos = 20'000;
// How long it waits after a look that failed.
constexpr int64_t kPauseNanos = 10'000'000;
// How often it asks an accelerator how far it is, when nothing else is to do.
constexpr int64_t kUnreadNanos = 20'000;

int64_t ExpectedStart(const StageExecutor& training, int64_t now) {
  RunProgress* progress = training.run().progress.get();
  // Not forecast: late enough for anything, but still a step.
  return progress == nullptr ? kNever - 1 : progress->ExpectedStart(training.lane_index(), now);
}

InferenceCandidate CandidateOf(const StageExecutor& executor, int64_t now) {
  const Run& run = executor.run();
  const Action& action = *executor.Next();
  const int64_t rows = run.spec.rows[action.micro_batch];
  const int behind = static_cast<int>(run.spec.rows.size()) - 1 - action.micro_batch;
  return {.pipeline = run.filling,
          .order = run.ticket->order,
          .due = run.ticket->due,
          .fills = run.filling->fills(),
          .duration = run.filling->inference_costs().Expected(StageIndex(action.stage), rows),
          .to_end = run.filling->inference_costs().MinToEnd(StageIndex(action.stage), rows, behind),
          .training_at = run.filling->NextRun(now),
          .weights_change_at = run.filling->WeightsChange(now)};
}

InferenceArrival ArrivalOf(const StageExecutor& executor) {
  const Run& run = executor.run();
  const Action& action = *executor.Next();
  return {.pipeline = run.filling,
          .order = run.ticket->order,
          .at = run.arrivals->At(StageIndex(action.stage), action.micro_batch)};
}

// A trainer that is given up and a wait that is long enough are no events.
void NoteLookAgain(const StageExecutor& executor, int64_t now, int64_t& at) {
  const Run& run = executor.run();
  for (int64_t time : {run.filling->NextRunGivenUpAt(), run.filling->turns().ClaimableAt(*run.ticket)}) {
    if (time > now) at = std::min(at, time);
  }
}

}  // namespace

DeviceWorker::DeviceWorker(const Device& device, IdlePolicy waits) : device_(device), waits_(waits) {
  if (waits_ == IdlePolicy::kForCalls) return;
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

void DeviceWorker::Add(NewExecutors executors) {
  absl::MutexLock lock(&mu_);
  new_.splice(new_.end(), executors);
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
  const uint64_t wakes = wakes_.load(std::memory_order_acquire);
  if (wakes == taken_) return;
  absl::MutexLock lock(&mu_);
  woken_ = false;
  for (auto& executor : new_) (executor->run().spec.inference ? inference_ : training_).push_back(std::move(executor));
  new_.clear();
  taken_ = wakes;
}

size_t DeviceWorker::FindTraining(bool& ended) {
  size_t i = 0;
  while (i < training_.size()) {
    switch (training_[i]->Poll()) {
      case StageExecutor::Readiness::kReady:
        return i;
      case StageExecutor::Readiness::kWaiting:
        ++i;
        break;
      case StageExecutor::Readiness::kDone:
        training_.erase(training_.begin() + static_cast<std::ptrdiff_t>(i));
        ended = true;
    }
  }
  return i;
}

// Where nothing trains, everything fits, and nobody has to become due.
bool DeviceWorker::BesideTraining(const BubbleFilling& filling, int64_t now) const {
  return !training_.empty() || filling.NextRun(now) != kNever || filling.WeightsChange(now) != kNever;
}

DeviceWorker::Choice DeviceWorker::ChooseInference(bool training_ready, bool& ended) {
  if (inference_.empty()) return {};
  const int64_t now = inference_.front()->lane().clock->NowNanos();
  candidates_.clear();
  owners_.clear();
  arrivals_.clear();
  for (size_t i = 0; i < inference_.size();) {
    StageExecutor& executor = *inference_[i];
    const Run& run = executor.run();
    // A run that stops leaves at once, because a change of the weights may wait for it.
    const bool due = BesideTraining(*run.filling, now) ? run.coordinator->BeDue(now) : run.ticket->due.load();
    const bool looked_at = !training_ready || due || run.coordinator->Stopped();
    const StageExecutor::Readiness readiness = looked_at ? executor.Poll() : StageExecutor::Readiness::kWaiting;
    if (readiness == StageExecutor::Readiness::kDone) {
      inference_.erase(inference_.begin() + static_cast<std::ptrdiff_t>(i));
      ended = true;
      continue;
    }
    if (readiness == StageExecutor::Readiness::kReady) {
      candidates_.push_back(CandidateOf(executor, now));
      owners_.push_back(&executor);
    } else if (looked_at && executor.Next() != nullptr) {
      arrivals_.push_back(ArrivalOf(executor));
    }
    ++i;
  }
  GapFiller::Outlook outlook{.now = now, .training_at = training_ready ? now : kNever, .arrivals = arrivals_};
  if (!training_ready && !candidates_.empty()) {
    for (const auto& executor : training_) {
      outlook.training_at = std::min(outlook.training_at, ExpectedStart(*executor, now));
    }
  }
  const std::optional<size_t> chosen =
      training_ready ? GapFiller::ChooseDue(candidates_) : filler_.Choose(candidates_, outlook);
  if (!chosen.has_value()) {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      NoteLookAgain(*owners_[i], now, look_again_at_);
      const int64_t yields_until = GapFiller::YieldsUntil(candidates_[i], outlook);
      if (yields_until > now) look_again_at_ = std::min(look_again_at_, yields_until);
    }
    return {};
  }
  const InferenceCandidate& candidate = candidates_[*chosen];
  const bool charged = candidate.due && candidate.duration != kNever && !GapFiller::HasTime(candidate, outlook);
  return {.executor = owners_[*chosen],
          .charge = charged ? candidate.duration : 0,
          .ends_at = candidate.duration == kNever ? kNever : now + candidate.duration};
}

DeviceWorker::Choice DeviceWorker::Choose(bool& ended) {
  TakeNew();
  look_again_at_ = kNever;
  const size_t training = FindTraining(ended);
  const bool training_ready = training < training_.size();
  const Choice inference = ChooseInference(training_ready, ended);
  if (inference.executor == nullptr && !training_ready) NoteUnread();
  if (inference.executor != nullptr || !training_ready) return inference;
  return {.executor = training_[training].get(), .training = training};
}

void DeviceWorker::NoteUnread() {
  for (const Executors* executors : {&training_, &inference_}) {
    for (const auto& executor : *executors) {
      if (!executor->awaits_device()) continue;
      look_again_at_ = std::min(look_again_at_, executor->lane().clock->NowNanos() + kUnreadNanos);
    }
  }
}

bool DeviceWorker::AwaitAccelerator() {
  for (const Executors* executors : {&training_, &inference_}) {
    for (const auto& executor : *executors) {
      if (executor->AwaitDevice()) return true;
    }
  }
  return false;
}

void DeviceWorker::TakeTurn(const Choice& choice) {
  const Run& run = choice.executor->run();
  if (run.spec.inference) {
    if (choice.charge > 0) run.filling->turns().Charge(*run.ticket, choice.executor->lane_index(), choice.charge);
    filler_.Served(run.filling);
    const Action& action = *choice.executor->Next();
    run.arrivals->Expect(StageIndex(action.stage + 1), action.micro_batch, choice.ends_at);
    return;
  }
  run.filling->turns().TrainingActs();
  // Served: to the end of the row.
  const auto served = training_.begin() + static_cast<std::ptrdiff_t>(choice.training);
  std::rotate(served, served + 1, training_.end());
}

bool DeviceWorker::Ready() {
  bool ended = false;
  return Choose(ended).executor != nullptr || ended;
}

void DeviceWorker::TellOthers(StageExecutor& running, bool taken) {
  for (const Executors* executors : {&training_, &inference_}) {
    for (const auto& other : *executors) {
      if (&other->lane() != &running.lane()) other->lane().state.DeviceTaken(taken);
    }
  }
}

bool DeviceWorker::PollOnce() {
  bool ended = false;
  const Choice choice = Choose(ended);
  if (choice.executor == nullptr) return ended;
  TakeTurn(choice);
  StageExecutor* const executor = choice.executor;
  busy_.store(true, std::memory_order_relaxed);
  TellOthers(*executor, true);
  executor->Execute();
  busy_.store(false, std::memory_order_relaxed);
  TellOthers(*executor, false);
  return true;
}

void DeviceWorker::Loop() {
  Clock* clock = RealClock();
  while (true) {
    const absl::StatusOr<bool> polled = Guarded("a device", [this] { return absl::StatusOr<bool>(PollOnce()); });
    if (polled.ok() && *polled) continue;
    const int64_t look_again_at = polled.ok() ? look_again_at_ : clock->NowNanos() + kPauseNanos;
    if (waits_ == IdlePolicy::kSpinsFirst && (!training_.empty() || !inference_.empty())) {
      const int64_t until = clock->NowNanos() + kSpinNanos;
      while (wakes_.load(std::memory_order_acquire) == taken_ && clock->NowNanos() < until) {
        __builtin_ia32_pause();
      }
    }
    absl::MutexLock lock(&mu_);
    sleeping_ = true;
    while (Idle()) {
      if (look_again_at == kNever) {
        changed_.Wait(&mu_);
      } else if (changed_.WaitWithTimeout(&mu_, absl::Nanoseconds(look_again_at - clock->NowNanos()))) {
        break;
      }
    }
    sleeping_ = false;
    if (stop_) return;
  }
}

}  // namespace penstock
