#include "engine/plan/rehearse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kMinute = 60;

// Candidates of one schedule each, named by their micro-batches 1, 2, ..., with these predictions in milliseconds.
struct Searched {
  PlanSearch search;
  std::vector<Plan> plans;
};

Searched Predicted(const std::vector<double>& milliseconds) {
  Searched found;
  for (size_t i = 0; i < milliseconds.size(); ++i) {
    PlanCandidate candidate;
    candidate.schedule.kind = "1f1b";
    candidate.schedule.micro_batches = static_cast<int>(i) + 1;
    candidate.makespan_seconds = milliseconds[i] * 1e-3;
    Plan plan;
    plan.schedule = candidate.schedule;
    found.search.candidates.push_back(candidate);
    found.plans.push_back(plan);
  }
  return found;
}

std::vector<int> Order(const Searched& found) {
  std::vector<int> names;
  for (const PlanCandidate& one : found.search.candidates) names.push_back(one.schedule.micro_batches);
  for (size_t i = 0; i < found.plans.size(); ++i) {
    EXPECT_EQ(found.plans[i].schedule.micro_batches, names[i]) << "plans go with their candidates";
  }
  return names;
}

// Steps that take so many seconds, by name; notes what was run.
struct Steps {
  std::vector<double> seconds;
  std::vector<int> ran;

  RunSteps Run() {
    return [this](const Plan& plan, const OutOfTime&) -> absl::StatusOr<std::vector<double>> {
      ran.push_back(plan.schedule.micro_batches);
      const double mine = seconds.at(plan.schedule.micro_batches - 1);
      return std::vector<double>{mine, mine};
    };
  }
};

TEST(Rehearse, TheFastestStepComesFirstAndTheRestStayBehind) {
  Searched found = Predicted({100, 101, 102, 150});
  Steps steps{{0.3, 0.1, 0.2, 0.01}, {}};
  RehearseBest(steps.Run(), kMinute, {}, found.plans, found.search);
  EXPECT_THAT(Order(found), ElementsAre(2, 3, 1, 4));
  EXPECT_EQ(found.search.candidates[0].rehearsed_seconds, 0.1);
  EXPECT_EQ(found.search.candidates[0].makespan_seconds, 0.101) << "the prediction stays what it was";
  EXPECT_FALSE(found.search.candidates[3].rehearsed_seconds.has_value());
  EXPECT_THAT(found.search.Reason(), HasSubstr("was the fastest of those that were run: 100.000 ms"));
}

TEST(Rehearse, EverySecondRoundRunsBackwards) {
  Searched found = Predicted({100, 101, 102});
  Steps steps{{1, 1, 1}, {}};
  RehearseBest(steps.Run(), kMinute, {}, found.plans, found.search);
  EXPECT_THAT(steps.ran, ElementsAre(1, 2, 3, 3, 2, 1));
  EXPECT_THAT(Order(found), ElementsAre(1, 2, 3)) << "equal ones stay in their order";
}

TEST(Rehearse, NoMoreAreRunThanTheMost) {
  Searched found = Predicted(std::vector<double>(20, 100));
  Steps steps{std::vector<double>(20, 1), {}};
  RehearseBest(steps.Run(), kMinute, {}, found.plans, found.search);
  EXPECT_EQ(steps.ran.size(), static_cast<size_t>(kMaxRehearsed * kRehearsals));
}

TEST(Rehearse, SlowPlansAreNotRunForLongerThanAnybodyWaits) {
  const double step_ms = kMinute * 1e3 / (kRehearsals * (1 + kRehearsalSteps));
  Searched found = Predicted({step_ms * 0.49, step_ms * 0.49, step_ms * 0.49});
  Steps steps{{2, 1, 0.5}, {}};
  RehearseBest(steps.Run(), kMinute, {}, found.plans, found.search);
  EXPECT_THAT(Order(found), ElementsAre(2, 1, 3)) << "two fit the time";
  Searched slower = Predicted({step_ms * 0.6, step_ms * 0.6, step_ms * 0.6, step_ms * 0.6});
  steps.ran.clear();
  RehearseBest(steps.Run(), kMinute, {}, slower.plans, slower.search);
  EXPECT_THAT(steps.ran, ElementsAre(1, 2, 3)) << "one round";
  Searched slow = Predicted({step_ms * 1.1, step_ms * 1.1});
  steps.ran.clear();
  RehearseBest(steps.Run(), kMinute, {}, slow.plans, slow.search);
  EXPECT_THAT(steps.ran, IsEmpty()) << "one alone need not be run";
}

TEST(Rehearse, APlanThatCannotRunStaysBehindThoseThatRan) {
  Searched found = Predicted({100, 101, 102});
  const RunSteps run = [](const Plan& plan, const OutOfTime&) -> absl::StatusOr<std::vector<double>> {
    if (plan.schedule.micro_batches == 1) {
      return Error(absl::StatusCode::kResourceExhausted, "NO_MEMORY", "no memory for a step");
    }
    return std::vector<double>{0.1 * plan.schedule.micro_batches};
  };
  RehearseBest(run, kMinute, {}, found.plans, found.search);
  EXPECT_THAT(Order(found), ElementsAre(2, 3, 1));
  EXPECT_FALSE(found.search.candidates[2].rehearsed_seconds.has_value());
  EXPECT_TRUE(found.search.complete);
}

TEST(Rehearse, AStartedRoundCountsNothingWhenTheTimeIsUp) {
  Searched found = Predicted({100, 101, 102});
  Steps steps{{3, 2, 1}, {}};
  RehearseBest(
      steps.Run(), kMinute, [&] { return steps.ran.size() == 2; }, found.plans, found.search);
  EXPECT_THAT(Order(found), ElementsAre(1, 2, 3));
  EXPECT_FALSE(found.search.candidates[0].rehearsed_seconds.has_value());
  EXPECT_FALSE(found.search.complete);
}

}  // namespace
}  // namespace penstock
