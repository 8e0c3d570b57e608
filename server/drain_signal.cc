#include "server/drain_signal.h"

namespace penstock {

void DrainSignal::Hurry() {
  absl::MutexLock lock(&mu_);
  hurried_ = true;
  view_.final = true;
}

void DrainSignal::WorkEnded() {
  absl::MutexLock lock(&mu_);
  work_ended_ = true;
}

void DrainSignal::SaveEnded(bool saved) {
  absl::MutexLock lock(&mu_);
  save_ended_ = true;
  saved_ = saved;
}

bool DrainSignal::Abort() {
  absl::MutexLock lock(&mu_);
  if (view_.final) return false;
  aborted_ = true;
  return true;
}

bool DrainSignal::MakeFinal() {
  absl::MutexLock lock(&mu_);
  if (aborted_ && !hurried_) return false;
  view_.final = true;
  return true;
}

bool DrainSignal::AskForUpgrade() {
  absl::MutexLock lock(&mu_);
  if (view_.phase < DrainPhase::kSave) view_.for_upgrade = true;
  return view_.for_upgrade;
}

bool DrainSignal::Enter(DrainPhase phase) {
  absl::MutexLock lock(&mu_);
  view_.phase = phase;
  return view_.for_upgrade;
}

DrainSignal::View DrainSignal::view() const {
  absl::MutexLock lock(&mu_);
  return view_;
}

bool DrainSignal::hurried() const {
  absl::MutexLock lock(&mu_);
  return hurried_;
}

bool DrainSignal::aborted() const {
  absl::MutexLock lock(&mu_);
  return aborted_;
}

bool DrainSignal::work_ended() const {
  absl::MutexLock lock(&mu_);
  return work_ended_;
}

bool DrainSignal::save_ended() const {
  absl::MutexLock lock(&mu_);
  return save_ended_;
}

bool DrainSignal::saved() const {
  absl::MutexLock lock(&mu_);
  return saved_;
}

void DrainSignal::AwaitTime(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &DrainSignal::Interrupted), time);
}

void DrainSignal::AwaitWork(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &DrainSignal::WorkEndedOrInterrupted), time);
}

void DrainSignal::AwaitSave(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &DrainSignal::SaveEndedOrInterrupted), time);
}

void DrainSignal::AwaitSaveInAnyCase(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&save_ended_), time);
}

void DrainSignal::AwaitSaveOrHurry() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &DrainSignal::SaveEndedOrHurried));
}

}  // namespace penstock
