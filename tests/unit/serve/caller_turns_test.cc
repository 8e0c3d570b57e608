#include "engine/serve/caller_turns.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock {
namespace {

CallPointer CallOf(const std::string& caller, int64_t rows = 1) {
  auto call = std::make_shared<Call>(CallContext{.caller = caller}, Request(InferCall{}));
  call->rows = rows;
  return call;
}

class CallerTurnsTest : public ::testing::Test {
 protected:
  CallPointer Add(const std::string& caller, int64_t rows = 1) {
    const CallPointer call = CallOf(caller, rows);
    turns_.Add(call);
    return call;
  }
  CallPointer Next() const {
    return turns_.Next([](const Call&) { return true; });
  }
  // Runs the next call to its end; whose it was.
  std::string RunNext() {
    const CallPointer next = Next();
    turns_.Start(next);
    turns_.End(next);
    return next->context.caller;
  }
  // How many others run before this call does, while `meanwhile` adds some.
  template <typename Meanwhile>
  int OthersBefore(const CallPointer& call, const Meanwhile& meanwhile) {
    for (int others = 0; others < 10'000; ++others) {
      if (Next() == call) return others;
      RunNext();
      meanwhile();
    }
    return -1;
  }

  CallerTurns turns_;
};

TEST_F(CallerTurnsTest, CallersAlternateAndEachKeepsItsOrder) {
  std::vector<CallPointer> calls;
  for (const char* caller : {"a", "a", "a", "b", "b", "c"}) calls.push_back(Add(caller));
  for (const int next : {0, 3, 5, 1, 4, 2}) {
    ASSERT_EQ(Next(), calls[next]) << next;
    RunNext();
  }
  EXPECT_EQ(Next(), nullptr);
}

TEST_F(CallerTurnsTest, CallersGetEqualRowsWhateverACallHas) {
  const std::map<std::string, int64_t> rows = {{"large", 8}, {"small", 1}};
  for (int call = 0; call < 200; ++call) {
    for (const auto& [caller, each] : rows) Add(caller, each);
  }
  std::map<std::string, int64_t> run;
  for (int turn = 0; turn < 150; ++turn) {
    const std::string caller = RunNext();
    run[caller] += rows.at(caller);
    EXPECT_LE(std::abs(run["large"] - run["small"]), 8) << "turn " << turn;
  }
  EXPECT_GT(run["large"], 100);
}

TEST_F(CallerTurnsTest, AFloodThatIsUnderWayKeepsACallWaitingForOneOfItsOwn) {
  for (int call = 0; call < 60; ++call) Add("flood");
  for (int call = 0; call < 16; ++call) turns_.Start(Next());
  const CallPointer one = Add("one");
  EXPECT_EQ(Next(), one);
  EXPECT_EQ(one->turn, 1) << "on the lanes it stands behind the first of the flood only";
}

TEST_F(CallerTurnsTest, NewNamesDoNotPassWhoWaits) {
  int name = 0;
  for (int call = 0; call < 10; ++call) Add("name-" + std::to_string(++name));
  for (int round = 0; round < 3; ++round) {
    const int others = OthersBefore(Add("ann"), [&] { Add("name-" + std::to_string(++name)); });
    EXPECT_LE(others, 10) << "those that were there before";
    EXPECT_GE(others, 0);
    RunNext();
  }
}

TEST_F(CallerTurnsTest, CancelledCallsCostNothing) {
  for (int call = 0; call < 10; ++call) Add("flood");
  std::vector<CallPointer> cancelled;
  for (int call = 0; call < 100; ++call) cancelled.push_back(Add("ann", 20));
  for (const CallPointer& call : cancelled) EXPECT_TRUE(turns_.Remove(call));
  EXPECT_FALSE(turns_.Remove(cancelled[0])) << "it waits no more";
  EXPECT_LE(OthersBefore(Add("ann"), [&] { Add("flood"); }), 1);
}

TEST_F(CallerTurnsTest, WhatACallerHadAloneIsNoDebtAndAbsenceNoClaim) {
  Add("ann", 2000);
  RunNext();
  for (int call = 0; call < 10; ++call) Add("flood");
  EXPECT_LE(OthersBefore(Add("ann"), [&] { Add("flood"); }), 1);
  RunNext();
  for (int run = 0; run < 100; ++run) {
    Add("flood");
    RunNext();
  }
  for (int call = 0; call < 10; ++call) Add("ann");
  for (int turn = 0, of_ann = 0; turn < 10; ++turn) {
    of_ann += RunNext() == "ann" ? 1 : 0;
    EXPECT_LE(of_ann, turn / 2 + 1);
  }
}

TEST_F(CallerTurnsTest, TurnsOfOneWhoMayNotStartAreLeftOut) {
  Add("a");
  const CallPointer other = Add("b");
  const auto only_b = [](const Call& call) { return call.context.caller == "b"; };
  EXPECT_EQ(turns_.Next(only_b), other);
  turns_.Start(other);
  EXPECT_EQ(turns_.Next(only_b), nullptr);
}

TEST_F(CallerTurnsTest, WhoIsPassedByItsCallersLaterCallsKeepsItsTurn) {
  const CallPointer waits = Add("ann", 2);
  for (int round = 0; round < 20; ++round) {
    const CallPointer passes = Add("ann", 50);
    EXPECT_EQ(turns_.Next([&](const Call& call) { return &call == passes.get(); }), passes);
    turns_.Start(passes);
    turns_.End(passes);
    if (round == 0) Add("bob", 2);
  }
  EXPECT_EQ(Next(), waits);
}

TEST_F(CallerTurnsTest, WhatPassesHasNoClaimOnTheTurnOfWhoIsPassed) {
  Add("ann", 2);
  const CallPointer passes = Add("ann", 50);
  const CallPointer other = Add("bob", 20);
  EXPECT_EQ(turns_.Next([&](const Call& call) { return &call == passes.get() || &call == other.get(); }), other);
}

TEST_F(CallerTurnsTest, AskingForTheMostRowsOverflowsNothing) {
  for (int call = 0; call < 3; ++call) Add("huge", int64_t{1} << 62);
  Add("one");
  for (int run = 0; run < 4; ++run) {
    EXPECT_GT(Next()->turn, 0);
    EXPECT_LT(Next()->turn, int64_t{1} << 22);
    RunNext();
  }
}

TEST_F(CallerTurnsTest, NothingIsKeptOfACallerWithoutACall) {
  const CallPointer waits = Add("a");
  const CallPointer runs = Add("b");
  turns_.Remove(waits);
  turns_.Start(runs);
  EXPECT_FALSE(turns_.idle());
  turns_.End(runs);
  EXPECT_TRUE(turns_.idle());
}

}  // namespace
}  // namespace penstock
