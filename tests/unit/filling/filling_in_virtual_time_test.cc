// Bubble filling as a whole, on lanes that exist only here: lists, forecasts and choices are the real ones, time is a
// number. So what filling does to training can be said to the nanosecond, without a machine that is busy with other
// things.

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/filling/action_costs.h"
#include "engine/filling/gap_filler.h"
#include "engine/schedule/build.h"

namespace penstock {
namespace {

constexpr int64_t kMilli = 1'000'000;

struct World {
  std::string kind = "1f1b";
  int lanes = 4;
  int micro_batches = 8;
  int64_t forward = 5 * kMilli;
  int64_t backward = 10 * kMilli;
  int64_t inference = 5 * kMilli;  // per stage
  int in_flight = 8;               // calls that are always open; 0: no inference
  double noise = 0;                // actions take up to this share more or less than they use to
};

struct Totals {
  int64_t training = 0;  // of the steps
  int64_t bubble = 0;
  int64_t filled = 0;  // inference inside steps
  int64_t useful = 0;  // of it, that of runs that were answered
  int answered = 0;
  int64_t longest = 0;  // from call to answer
};

// One stage per lane; a closed load of inference runs of one micro-batch.
class Machine {
 public:
  explicit Machine(const World& world)
      : world_(world),
        inference_costs_(std::vector<int64_t>(world.lanes, world.inference), 1),
        training_costs_(Calibrated(world)) {
    absl::StatusOr<Schedule> lists =
        BuildSchedule({.kind = world.kind, .lanes = world.lanes, .micro_batches = world.micro_batches});
    EXPECT_TRUE(lists.ok()) << lists.status();
    schedule_ = std::make_shared<const Schedule>(*std::move(lists));
    for (int i = 0; i < world.in_flight; ++i) runs_.push_back({.sequence = next_run_++});
  }

  Totals Run(int steps) {
    Totals totals;
    for (int step = 0; step < steps; ++step) Step(totals);
    return totals;
  }

 private:
  struct InferenceRun {
    int64_t sequence = 0;
    int64_t since = 0;
    int stage = 0;
    bool running = false;
    int64_t spent = 0;  // in this step
  };
  struct LaneAt {
    size_t position = 0;
    int64_t until = 0;  // when what it does ends
    bool training = false;
    std::optional<size_t> run;  // the inference that it does
  };
  using Message = std::tuple<int, int, bool, int>;  // from, to, gradient, micro-batch

  static ScheduleCosts Calibrated(const World& world) {
    ScheduleCosts costs;
    costs.stages.assign(world.lanes, {.forward = world.forward,
                                      .input_gradient = world.backward / 2,
                                      .weight_gradient = world.backward / 2,
                                      .backward = world.backward});
    return costs;
  }

  // The same for the same key, whatever happens in between.
  int64_t Noisy(int64_t nanos, uint64_t key) const {
    std::mt19937_64 random(key * 1'000'003);
    const double by = std::uniform_real_distribution<double>(-world_.noise, world_.noise)(random);
    return nanos + static_cast<int64_t>(by * static_cast<double>(nanos));
  }
  int64_t Takes(int lane, size_t position) const {
    const ActionKind kind = schedule_->lanes[lane][position].kind;
    const int64_t usual = kind == ActionKind::kForward    ? world_.forward
                          : kind == ActionKind::kBackward ? world_.backward
                                                          : world_.backward / 2;
    return Noisy(usual, (step_ * 64 + lane) * 4096 + position);
  }

  // Goes past the receives whose message is there; returns whether a compute action is next.
  bool AtCompute(int lane) {
    const std::vector<Action>& list = schedule_->lanes[lane];
    size_t& position = lanes_[lane].position;
    while (position < list.size() && IsReceive(list[position].kind)) {
      const Action& action = list[position];
      const bool gradient = action.kind == ActionKind::kReceiveBackward;
      const int from = gradient ? action.stage + 1 : action.stage - 1;
      if (sent_.count({from, action.stage, gradient, action.micro_batch}) == 0) return false;
      ++position;
    }
    return position < list.size() && list[position].kind != ActionKind::kOptimizer;
  }

  bool AllAtStep() {
    for (int lane = 0; lane < world_.lanes; ++lane) {
      const bool busy = lanes_[lane].training || lanes_[lane].run.has_value();
      const bool step = schedule_->lanes[lane][lanes_[lane].position].kind == ActionKind::kOptimizer;
      if (busy || !step) return false;
    }
    return true;
  }
  bool TrainingDone() {
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (lanes_[lane].training) return false;
      if (schedule_->lanes[lane][lanes_[lane].position].kind != ActionKind::kOptimizer) return false;
    }
    return true;
  }

  void EndActions(Totals& totals) {
    for (int lane = 0; lane < world_.lanes; ++lane) {
      LaneAt& at = lanes_[lane];
      if (at.until != now_) continue;
      if (at.training) {
        at.training = false;
        progress_->End(LaneIndex(lane), now_);
        const std::vector<Action>& list = schedule_->lanes[lane];
        for (++at.position; at.position < list.size() && IsSend(list[at.position].kind); ++at.position) {
          const Action& send = list[at.position];
          const bool gradient = send.kind == ActionKind::kSendBackward;
          sent_.insert({send.stage, gradient ? send.stage - 1 : send.stage + 1, gradient, send.micro_batch});
        }
      } else if (at.run.has_value()) {
        InferenceRun& run = runs_[*at.run];
        at.run.reset();
        run.running = false;
        if (++run.stage < world_.lanes) continue;
        totals.useful += run.spent;
        totals.longest = std::max(totals.longest, now_ - run.since);
        ++totals.answered;
        run = {.sequence = next_run_++, .since = now_};
      }
    }
  }

  void BeginActions(Totals& totals) {
    for (int lane = 0; lane < world_.lanes; ++lane) {
      LaneAt& at = lanes_[lane];
      if (at.training || at.run.has_value()) continue;
      if (AtCompute(lane)) {
        const int64_t nanos = Takes(lane, at.position);
        progress_->Begin(LaneIndex(lane), at.position, now_);
        at.training = true;
        at.until = now_ + nanos;
        work_ += nanos;
      }
    }
    for (int lane = 0; lane < world_.lanes; ++lane) {
      LaneAt& at = lanes_[lane];
      if (at.training || at.run.has_value() || TrainingDone()) continue;  // at its end the weights are asked for
      std::vector<InferenceCandidate> candidates;
      std::vector<size_t> places;
      for (size_t i = 0; i < runs_.size(); ++i) {
        if (runs_[i].running || runs_[i].stage != lane) continue;
        places.push_back(i);
        candidates.push_back({.pipeline = this,
                              .order = {.sequence = runs_[i].sequence},
                              .duration = inference_costs_.Expected(StageIndex(lane), 1),
                              .to_end = inference_costs_.MinToEnd(StageIndex(lane), 1, 0),
                              .weights_change_at = progress_->ExpectedWeightsChange(now_)});
      }
      const std::optional<size_t> chosen =
          filler_.Choose(candidates, {.now = now_, .training_at = progress_->ExpectedStart(LaneIndex(lane), now_)});
      if (!chosen.has_value()) continue;
      InferenceRun& run = runs_[places[*chosen]];
      const int64_t nanos = Noisy(world_.inference, static_cast<uint64_t>(now_));
      run.running = true;
      run.spent += nanos;
      at.run = places[*chosen];
      at.until = now_ + nanos;
      totals.filled += nanos;
      inference_costs_.Observe(StageIndex(lane), 1, nanos);
    }
  }

  void Step(Totals& totals) {
    ++step_;
    lanes_.assign(world_.lanes, {});
    sent_.clear();
    work_ = 0;
    const int64_t begin = now_;
    progress_ = std::make_unique<RunProgress>(
        schedule_, begin, [this] { return training_costs_.Forecast(schedule_, 1, /*barrier=*/true); });
    for (LaneAt& lane : lanes_) lane.until = begin - 1;
    BeginActions(totals);
    while (!AllAtStep()) {
      int64_t next = kNever;
      for (const LaneAt& lane : lanes_) {
        if (lane.training || lane.run.has_value()) next = std::min(next, lane.until);
      }
      if (next == kNever) {
        ADD_FAILURE() << "nothing moves";
        return;
      }
      now_ = next;
      EndActions(totals);
      BeginActions(totals);
    }
    training_costs_.Learn(1, progress_->Totals());
    // The weights change: whoever is on the way begins anew.
    for (InferenceRun& run : runs_) run.stage = run.spent = 0;
    totals.training += now_ - begin;
    totals.bubble += (now_ - begin) * world_.lanes - work_;
  }

  const World world_;
  std::shared_ptr<const Schedule> schedule_;
  InferenceCosts inference_costs_;
  TrainingCosts training_costs_;
  GapFiller filler_;
  uint64_t step_ = 0;
  int64_t now_ = 0;
  int64_t work_ = 0;
  int64_t next_run_ = 1;
  std::vector<InferenceRun> runs_;
  std::vector<LaneAt> lanes_;
  std::set<Message> sent_;
  std::unique_ptr<RunProgress> progress_;
};

struct Effect {
  double slower = 0;
  double filled = 0;
  double useful = 0;
  int64_t longest = 0;
  int answered = 0;
  int64_t step = 0;
};

Effect Compare(World world, int steps = 20) {
  const Totals beside = Machine(world).Run(steps);
  world.in_flight = 0;
  const Totals alone = Machine(world).Run(steps);
  const auto bubble = static_cast<double>(alone.bubble);
  return {.slower = static_cast<double>(beside.training) / static_cast<double>(alone.training) - 1,
          .filled = static_cast<double>(beside.filled) / bubble,
          .useful = static_cast<double>(beside.useful) / bubble,
          .longest = beside.longest,
          .answered = beside.answered,
          .step = alone.training / steps};
}

class FillingInVirtualTime : public ::testing::TestWithParam<std::tuple<const char*, int, double>> {};

TEST_P(FillingInVirtualTime, FillsMostOfTheBubbleAndSlowsTrainingByLessThanAHundredth) {
  const auto& [kind, lanes, noise] = GetParam();
  const Effect effect = Compare({.kind = kind,
                                 .lanes = lanes,
                                 .micro_batches = 2 * lanes,
                                 .inference = 2 * kMilli,
                                 .in_flight = 6 * lanes,
                                 .noise = noise});
  EXPECT_LE(effect.slower, 0.01);
  EXPECT_GE(effect.filled, 0.6);
  EXPECT_GE(effect.useful, 0.5);
  EXPECT_LE(effect.longest, 3 * effect.step);
}

INSTANTIATE_TEST_SUITE_P(Worlds, FillingInVirtualTime,
                         ::testing::Combine(::testing::Values("1f1b", "gpipe"), ::testing::Values(2, 4, 8),
                                            ::testing::Values(0.0, 0.05)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == 0 ? "Exact" : "Noisy");
                         });

TEST(FillingOnce, WhereActionsAreAsLongAsForwardsTrainingStillHardlyNotices) {
  for (const char* kind : {"1f1b", "gpipe", "zb-h1"}) {
    for (const double noise : {0.0, 0.05, 0.1}) {
      const Effect effect = Compare({.kind = kind, .inference = 5 * kMilli + 100'000, .noise = noise});
      EXPECT_LE(effect.slower, 0.01) << kind << " " << noise;
      EXPECT_GT(effect.filled, 0.2) << kind << " " << noise;
    }
  }
}

TEST(FillingOnce, WhatFitsNoGapCostsNothing) {
  const Effect effect = Compare({.inference = 60 * kMilli, .noise = 0.05});
  EXPECT_EQ(effect.slower, 0);
  EXPECT_EQ(effect.filled, 0);
  EXPECT_EQ(effect.answered, 0);
}

TEST(FillingOnce, OneLaneHasNoGap) {
  const Effect effect = Compare({.lanes = 1, .inference = kMilli / 10});
  EXPECT_EQ(effect.slower, 0);
  EXPECT_EQ(effect.answered, 0);
}

}  // namespace
}  // namespace penstock
