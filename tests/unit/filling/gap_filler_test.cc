#include "engine/filling/gap_filler.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr int64_t kNow = 1'000'000;

// Addresses that stand for pipelines.
const int kPipelines[3] = {};

InferenceCandidate Action(int64_t duration, int64_t sequence = 1, const void* pipeline = &kPipelines[0]) {
  return {.pipeline = pipeline, .order = {.sequence = sequence}, .duration = duration};
}

bool Fits(const InferenceCandidate& candidate, int64_t gap) {
  return GapFiller::Fits(candidate, {.now = kNow, .training_at = kNow + gap});
}

TEST(GapFiller, TakesWhatTheGapHoldsAndNothingLonger) {
  EXPECT_TRUE(Fits(Action(500), 600));
  EXPECT_TRUE(Fits(Action(500), 500));
  EXPECT_TRUE(Fits(Action(500), 400));  // at most a fifth of the action lies beyond
  EXPECT_FALSE(Fits(Action(500), 399));
  EXPECT_FALSE(Fits(Action(500), 0));
}

TEST(GapFiller, DoesNotTakeWhatNobodyKnowsTheLengthOf) {
  EXPECT_FALSE(Fits(Action(kNever), 1'000'000'000));
  EXPECT_TRUE(GapFiller::Fits(Action(kNever), {.now = kNow}));  // without training in sight it may
}

TEST(GapFiller, TheEarliestNeedOfTheDeviceEndsTheGap) {
  InferenceCandidate action = Action(500);
  action.training_at = kNow + 100;  // its own pipeline's next step
  EXPECT_FALSE(Fits(action, 1000));
  action.training_at = kNow + 1000;
  EXPECT_FALSE(Fits(action, 100));
  EXPECT_TRUE(Fits(action, 1000));
}

TEST(GapFiller, SwitchedOffItStaysOutOfSteps) {
  InferenceCandidate action = Action(1);
  action.fills = false;
  EXPECT_FALSE(Fits(action, 1'000'000));
  EXPECT_TRUE(GapFiller::Fits(action, {.now = kNow}));
}

TEST(GapFiller, DoesNotBeginWhatCannotEndBeforeTheWeightsChange) {
  InferenceCandidate action = Action(100);
  action.to_end = 1000;
  action.weights_change_at = kNow + 1000;
  EXPECT_TRUE(Fits(action, 500));
  action.weights_change_at = kNow + 799;
  EXPECT_FALSE(Fits(action, 500));
  action.weights_change_at = kNever;
  EXPECT_TRUE(Fits(action, 500));
}

TEST(GapFiller, ServesPipelinesInTurnThenPrioritiesThenTheOldestRun) {
  GapFiller filler;
  std::vector<InferenceCandidate> actions = {Action(1, 5), Action(1, 4), Action(1, 9, &kPipelines[1])};
  EXPECT_EQ(filler.Choose(actions, {.now = kNow}), 1);
  filler.Served(&kPipelines[0]);
  EXPECT_EQ(filler.Choose(actions, {.now = kNow}), 2);
  filler.Served(&kPipelines[1]);
  actions[0].order.priority = 1;
  EXPECT_EQ(filler.Choose(actions, {.now = kNow}), 0);
}

TEST(GapFiller, OfOnePriorityTheEarliestTurnGoesFirst) {
  std::vector<InferenceCandidate> actions = {Action(1, 1), Action(1, 2), Action(1, 3)};
  actions[0].order.turn = 5;
  actions[1].order.turn = 4;
  actions[2].order.turn = 4;
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow}), 1);
  actions[0].order.priority = 1;
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow}), 0);
}

TEST(GapFiller, LooksPastAnActionThatDoesNotFit) {
  const std::vector<InferenceCandidate> actions = {Action(1000, 1), Action(100, 2)};
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow, .training_at = kNow + 200}), 1);
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow, .training_at = kNow + 50}), std::nullopt);
}

TEST(GapFiller, OfThoseWhoAreDueTheHighestPriorityGoesFirst) {
  std::vector<InferenceCandidate> actions = {Action(1, 3), Action(1, 7), Action(1, 1)};
  actions[0].due = actions[1].due = true;
  actions[1].order.priority = 1;
  actions[2].order.priority = 9;
  EXPECT_EQ(GapFiller::ChooseDue(actions), 1);
}

TEST(GapFiller, WhoIsDueGoesBeforeAllAndNeedsNoGap) {
  std::vector<InferenceCandidate> actions = {Action(1, 1), Action(1000, 7), Action(1000, 3)};
  EXPECT_EQ(GapFiller::ChooseDue(actions), std::nullopt);
  actions[1].due = actions[2].due = true;
  EXPECT_EQ(GapFiller::ChooseDue(actions), 2);
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow, .training_at = kNow}), 2);
}

TEST(GapFiller, LeavesTheDeviceToARunThatGoesBeforeAndIsExpectedBeforeItsEnd) {
  InferenceCandidate action = Action(500);
  action.order.turn = 5;
  InferenceArrival arrival = {.pipeline = &kPipelines[0], .order = {.turn = 4}, .at = kNow + 499};
  const auto until = [&](int64_t now) {
    return GapFiller::YieldsUntil(action, {.now = now, .arrivals = {&arrival, 1}});
  };
  const auto takes = [&](int64_t now) {
    return GapFiller().Choose({action}, {.now = now, .arrivals = {&arrival, 1}}).has_value();
  };
  EXPECT_EQ(until(kNow), arrival.at + 500);
  EXPECT_FALSE(takes(kNow));
  EXPECT_TRUE(takes(kNow - 1));  // it ends just then
  EXPECT_FALSE(takes(arrival.at + 499));
  EXPECT_TRUE(takes(arrival.at + 500));  // late for so long: perhaps it does not come
  arrival.order.turn = 6;
  EXPECT_TRUE(takes(kNow));  // a later turn
  arrival.order.priority = 1;
  EXPECT_FALSE(takes(kNow));
  arrival.pipeline = &kPipelines[1];
  EXPECT_TRUE(takes(kNow));  // pipelines have turns of their own
}

TEST(GapFiller, LeavesTheDeviceToNobodyWhoseTimeIsUnknown) {
  InferenceCandidate action = Action(500, 2);
  InferenceArrival arrival = {.pipeline = &kPipelines[0], .order = {.sequence = 1}, .at = kNever};
  EXPECT_EQ(GapFiller().Choose({action}, {.now = kNow, .arrivals = {&arrival, 1}}), 0);
  arrival.at = kNow;
  EXPECT_FALSE(GapFiller().Choose({action}, {.now = kNow, .arrivals = {&arrival, 1}}).has_value());
  action.duration = kNever;
  EXPECT_EQ(GapFiller().Choose({action}, {.now = kNow, .arrivals = {&arrival, 1}}), 0);
}

TEST(GapFiller, TakesAShorterActionInsteadAndRunsThatAreDueInAnyCase) {
  std::vector<InferenceCandidate> actions = {Action(500, 2), Action(100, 3)};
  const InferenceArrival arrival = {.pipeline = &kPipelines[0], .order = {.sequence = 1}, .at = kNow + 200};
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow, .arrivals = {&arrival, 1}}), 1);
  actions[0].due = true;
  EXPECT_EQ(GapFiller().Choose(actions, {.now = kNow, .arrivals = {&arrival, 1}}), 0);
}

}  // namespace
}  // namespace penstock
