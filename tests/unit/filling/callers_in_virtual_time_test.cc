// One caller asks for one inference after the other, beside another who has many open, on lanes that exist only here:
// choices and expectations are the real ones, time is a number.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/filling/action_costs.h"
#include "engine/filling/expected_arrivals.h"
#include "engine/filling/gap_filler.h"

namespace penstock {
namespace {

constexpr int64_t kAction = 2'000'000;

struct World {
  int lanes = 2;
  int flood = 16;    // runs that are always under way, of another caller
  double noise = 0;  // actions take up to this share more or less
  bool asks = true;  // whether the small caller is there
};

struct Totals {
  int64_t longest = 0;  // from a call of the small caller to its answer
  int answered = 0;     // of the flood
};

// One stage per lane; runs of one micro-batch.
class Lanes {
 public:
  explicit Lanes(const World& world)
      : world_(world), costs_(std::vector<int64_t>(world.lanes, kAction), 1), lanes_(world.lanes) {
    for (int i = 0; i < world.flood; ++i) runs_.push_back(NewRun());
    if (!world.asks) return;
    small_ = runs_.size();
    asks_at_ = 0;
    runs_.push_back({.arrivals = std::make_unique<ExpectedArrivals>(world.lanes, 1), .stage = world.lanes});
  }

  Totals Run(int64_t time) {
    while (now_ < time) {
      if (small_.has_value() && now_ >= asks_at_) Ask();
      Begin();
      now_ = Next();
      End();
    }
    return totals_;
  }

 private:
  struct OneRun {
    InferenceOrder order = {};
    std::unique_ptr<ExpectedArrivals> arrivals;
    int64_t since = 0;
    int stage = 0;  // that is next; behind the last: not under way
    bool running = false;
  };
  struct LaneAt {
    std::optional<size_t> run;
    int64_t until = kNever;       // when its action ends
    int64_t look_again = kNever;  // without an action
  };

  OneRun NewRun() {
    ++sequence_;
    return {.order = {.turn = sequence_, .sequence = sequence_},
            .arrivals = std::make_unique<ExpectedArrivals>(world_.lanes, 1),
            .since = now_};
  }
  void Ask() {
    runs_[*small_] = NewRun();
    runs_[*small_].order.turn = 0;  // its caller has had least
    asks_at_ = kNever;
  }

  void Begin() {
    for (int lane = 0; lane < world_.lanes; ++lane) {
      LaneAt& at = lanes_[lane];
      if (at.run.has_value()) continue;
      std::vector<InferenceCandidate> candidates;
      std::vector<size_t> places;
      std::vector<InferenceArrival> arrivals;
      for (size_t i = 0; i < runs_.size(); ++i) {
        const OneRun& run = runs_[i];
        if (run.stage == lane && !run.running) {
          places.push_back(i);
          candidates.push_back(
              {.pipeline = this, .order = run.order, .duration = costs_.Expected(StageIndex(lane), 1)});
        } else if (run.stage < lane) {
          arrivals.push_back({.pipeline = this, .order = run.order, .at = run.arrivals->At(StageIndex(lane), 0)});
        }
      }
      const GapFiller::Outlook outlook = {.now = now_, .arrivals = arrivals};
      const std::optional<size_t> chosen = filler_.Choose(candidates, outlook);
      at.look_again = kNever;
      if (!chosen.has_value()) {
        for (const InferenceCandidate& one : candidates) {
          at.look_again = std::min(at.look_again, GapFiller::YieldsUntil(one, outlook));
        }
        continue;
      }
      OneRun& run = runs_[places[*chosen]];
      const int64_t nanos = Noisy();
      run.running = true;
      run.arrivals->Expect(StageIndex(lane + 1), 0, now_ + candidates[*chosen].duration);
      at.run = places[*chosen];
      at.until = now_ + nanos;
      costs_.Observe(StageIndex(lane), 1, nanos);
    }
  }

  int64_t Next() const {
    int64_t next = std::max(now_ + 1, asks_at_);
    for (const LaneAt& at : lanes_)
      next = std::min(next, at.run.has_value() ? at.until : std::max(now_ + 1, at.look_again));
    return next;
  }

  void End() {
    for (LaneAt& at : lanes_) {
      if (!at.run.has_value() || at.until != now_) continue;
      const size_t place = *at.run;
      OneRun& run = runs_[place];
      at.run.reset();
      run.running = false;
      if (++run.stage < world_.lanes) continue;
      if (place == small_) {
        totals_.longest = std::max(totals_.longest, now_ - run.since);
        asks_at_ = now_ + std::uniform_int_distribution<int64_t>(0, 5 * kAction)(random_);
      } else {
        ++totals_.answered;
        run = NewRun();
      }
    }
  }

  int64_t Noisy() {
    const double by = std::uniform_real_distribution<double>(-world_.noise, world_.noise)(random_);
    return kAction + static_cast<int64_t>(by * static_cast<double>(kAction));
  }

  const World world_;
  InferenceCosts costs_;
  GapFiller filler_;
  std::mt19937_64 random_{7};
  int64_t now_ = 0;
  int64_t asks_at_ = kNever;
  int64_t sequence_ = 0;
  std::optional<size_t> small_;
  std::vector<OneRun> runs_;
  std::vector<LaneAt> lanes_;
  Totals totals_;
};

class CallersInVirtualTime : public ::testing::TestWithParam<int> {};

// The rest of one foreign action on the first stage, and no other; with noise, what the expectations are wrong by.
TEST_P(CallersInVirtualTime, ASmallCallWaitsForOneForeignActionOnAllStagesTogether) {
  const int lanes = GetParam();
  for (const double noise : {0.0, 0.05}) {
    const Totals totals = Lanes({.lanes = lanes, .noise = noise}).Run(10'000 * kAction);
    const double alone = lanes * kAction * (1 + noise);
    EXPECT_LE(static_cast<double>(totals.longest), alone + (1 + noise) * kAction + 4 * noise * lanes * kAction)
        << noise;
    EXPECT_GT(totals.answered, 1000) << noise;
  }
}

// What the small caller's runs take, and on each lane a pause of less than an action for each.
TEST_P(CallersInVirtualTime, TheOtherCallerGoesOn) {
  const int lanes = GetParam();
  const Totals alone = Lanes({.lanes = lanes, .asks = false}).Run(10'000 * kAction);
  const Totals beside = Lanes({.lanes = lanes, .noise = 0.05}).Run(10'000 * kAction);
  EXPECT_GE(alone.answered, 9'900);
  EXPECT_GE(beside.answered, alone.answered / 2);
}

INSTANTIATE_TEST_SUITE_P(Lanes, CallersInVirtualTime, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace penstock
