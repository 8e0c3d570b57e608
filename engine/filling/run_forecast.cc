#include "engine/filling/run_forecast.h"

#include <algorithm>

#include "engine/base/status_macros.h"

namespace penstock {
absl::StatusOr<RunForecast> MakeForecast(const Schedule& schedule, const ScheduleCosts& costs) {
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(schedule, costs));
  RunForecast forecast;
  for (const std::vector<TimedAction>& list : simulation.lanes) {
    std::vector<RunForecast::Span> spans(list.size() + 1);
    for (size_t i = list.size(); i-- > 0;) {
      const TimedAction& timed = list[i];
      spans[i] = IsCommunication(timed.action.kind) ? spans[i + 1] : RunForecast::Span{timed.start, timed.end};
      if (timed.action.kind == ActionKind::kOptimizer) {
        forecast.weights_change = std::min(forecast.weights_change, timed.start);
      }
    }
    forecast.lanes.push_back(std::move(spans));
  }
  return forecast;
}

RunProgress::RunProgress(std::shared_ptr<const Schedule> schedule, int64_t begin_nanos, Forecaster forecaster)
    : schedule_(std::move(schedule)),
      begin_(begin_nanos),
      forecaster_(std::move(forecaster)),
      lanes_(schedule_->lanes.size()) {}

void RunProgress::Begin(LaneIndex lane, size_t position, int64_t now) {
  absl::MutexLock lock(&mu_);
  lanes_[lane.value()] = {LaneAt::Doing::kWorks, position, now};
}

void RunProgress::End(LaneIndex lane, int64_t now) {
  absl::MutexLock lock(&mu_);
  LaneAt& state = lanes_[lane.value()];
  const Action& action = schedule_->lanes[lane.value()][state.position];
  Total& total = totals_[{action.stage, action.kind}];
  total.nanos += now - state.began;
  ++total.count;
  state.doing = LaneAt::Doing::kWaits;
  ++state.position;
}

void RunProgress::Leave(LaneIndex lane) {
  absl::MutexLock lock(&mu_);
  lanes_[lane.value()].doing = LaneAt::Doing::kLeft;
}

const RunForecast* RunProgress::Forecast() {
  const RunForecast* known = forecast_.load(std::memory_order_acquire);
  if (known != nullptr || !forecast_mu_.TryLock()) return known;
  if (forecaster_) {
    made_ = forecaster_();
    forecaster_ = nullptr;
    forecast_.store(made_.get(), std::memory_order_release);
  }
  forecast_mu_.Unlock();
  return forecast_.load(std::memory_order_acquire);
}

int64_t RunProgress::Lateness(const RunForecast& forecast, int64_t now) const {
  const int64_t elapsed = now - begin_;
  int64_t least = kNever;
  int64_t next = kNever;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const LaneAt& state = lanes_[lane];
    const RunForecast::Span& span = forecast.lanes[lane][state.position];
    if (state.doing == LaneAt::Doing::kWorks) {
      least = std::min(least, std::max(state.began - begin_ - span.start, elapsed - span.end));
    } else if (state.doing == LaneAt::Doing::kWaits) {
      next = std::min(next, span.start);
    }
  }
  if (least != kNever) return least;
  return next == kNever ? 0 : elapsed - next;
}

int64_t RunProgress::ExpectedStart(LaneIndex lane, int64_t now) {
  const RunForecast* forecast = Forecast();
  if (forecast == nullptr) return now;
  absl::MutexLock lock(&mu_);
  const LaneAt& state = lanes_[lane.value()];
  const int64_t start = forecast->lanes[lane.value()][state.position].start;
  if (state.doing == LaneAt::Doing::kLeft || start == kNever) return kNever;
  return std::max(now, begin_ + start + Lateness(*forecast, now));
}

int64_t RunProgress::ExpectedWeightsChange(int64_t now) {
  const RunForecast* forecast = Forecast();
  if (forecast == nullptr || forecast->weights_change == kNever) return kNever;
  absl::MutexLock lock(&mu_);
  return std::max(now, begin_ + forecast->weights_change + Lateness(*forecast, now));
}

std::map<std::pair<int, ActionKind>, RunProgress::Total> RunProgress::Totals() const {
  absl::MutexLock lock(&mu_);
  return totals_;
}

}  // namespace penstock
