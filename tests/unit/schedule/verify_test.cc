#include "engine/schedule/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/credits.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr VerifyOptions kCompute = {.purpose = SchedulePurpose::kContribution, .with_communication = false};
constexpr VerifyOptions kComplete = {.purpose = SchedulePurpose::kContribution};

// "invariant action@lane/position: cause", or "ok".
std::string Failure(std::string_view csv, const VerifyOptions& options) {
  const auto schedule = ParseCsv(csv);
  if (!schedule.ok()) return schedule.status().ToString();
  const auto peaks = Verify(*schedule, options);
  if (peaks.ok()) return "ok";
  const std::string message(peaks.status().message());
  auto values = ValuesOf(peaks.status());
  if (ReasonOf(peaks.status()) != "SPEC_INVALID") return message;
  const size_t cause = message.find('\n') + 3;
  return values["invariant"] + " " + values["action"] + "@" + values["lane"] + "/" + values["position"] + ": " +
         message.substr(cause, message.find('\n', cause) - cause);
}

TEST(VerifyTest, ADeadlockPrintsItsCycle) {
  const auto schedule = ParseCsv(
      "0F0,0F1,0F2,0B0,0B1,0B2\n"
      "1F0,1B0,1F1,1F2,1B1,1B2\n"
      "2F0,2F1,2B0,2F2,2B1,2B2\n");
  const auto peaks = Verify(*schedule, kCompute);
  ASSERT_FALSE(peaks.ok());
  EXPECT_EQ(peaks.status().message(),
            "schedule: deadlock at lane 1, position 1 (1B0)\n"
            "  1B0 waits for 2B0; 2B0 follows 2F1 on lane 2; 2F1 waits for 1F1; 1F1 follows 1B0 on lane 1\n"
            "pos  lane 0  lane 1  lane 2\n"
            "  0  0F0     1F0     2F0\n"
            "  1  0F1     >1B0<   >2F1<\n"
            "  2  0F2     1F1     2B0\n"
            "  3  (0B0)   1F2     2F2\n"
            "  4  0B1     1B1     2B1\n"
            "  5  0B2     1B2     2B2");
  EXPECT_EQ(peaks.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(peaks.status()), "SPEC_INVALID");
}

TEST(VerifyTest, ACycleThroughMessagesPrintsThem) {
  EXPECT_EQ(Failure("0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                    "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
                    kComplete),
            "deadlock 0RECV_B0@0/2: 0RECV_B0 waits for 1SEND_B0; 1SEND_B0 follows 1RECV_F1 on lane 1; "
            "1RECV_F1 waits for 0SEND_F1; 0SEND_F1 follows 0RECV_B0 on lane 0");
}

TEST(VerifyTest, ALargeGridIsCutToTheMarks) {
  Schedule schedule = OneForwardOneBackward(64, 500);
  std::swap(schedule.lanes[40][100], schedule.lanes[40][300]);  // two backwards
  const auto peaks = Verify(schedule, kCompute);
  ASSERT_FALSE(peaks.ok());
  const std::string message(peaks.status().message());
  EXPECT_THAT(message,
              StartsWith("schedule: order at lane 40, position 100 (40B138)\n  40B138 stands before 40F138\n"));
  EXPECT_THAT(message, HasSubstr("\npos  lane 39  lane 40   lane 41\n...\n 96  39F60    40B36     41F59\n"));
  EXPECT_THAT(message, HasSubstr(">40B138<"));
  EXPECT_THAT(message, HasSubstr("(40F138)"));
  EXPECT_LT(message.size(), 10'000u);
}

TEST(VerifyTest, AcceptsWhatTheKindsGenerate) {
  EXPECT_TRUE(Verify(FillDrain(3, 4), kCompute).ok());
  EXPECT_TRUE(Verify(OneForwardOneBackward(3, 4), kCompute).ok());
  EXPECT_TRUE(Verify(ForwardOnly(3, 4), {.purpose = SchedulePurpose::kForwardOnly, .with_communication = false}).ok());
}

TEST(VerifyTest, AcceptsASplitBackwardOverAFoldedPlacement) {
  EXPECT_EQ(Failure("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n", kCompute), "ok");
}

TEST(VerifyTest, Content) {
  EXPECT_EQ(Failure("0F0,0B0,0OPT\n", kComplete),
            "content 0OPT@0/2: 0OPT has no place in a schedule for: contribution");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0B0\n", kCompute),
            "content 0SEND_F0@0/1: 0SEND_F0 has no place in a schedule for: contribution, compute actions only");
  EXPECT_EQ(Failure("0F0,0B0\n", {.purpose = SchedulePurpose::kForwardOnly}),
            "content 0B0@0/1: 0B0 has no place in a schedule for: forward only");
  EXPECT_EQ(Failure("0F0,0B0\n", {.purpose = SchedulePurpose::kBackwardOnly}),
            "content 0F0@0/0: 0F0 has no place in a schedule for: backward only");
  EXPECT_EQ(Failure("0R0,0OPT\n", {.purpose = SchedulePurpose::kOptimizerOnly}),
            "content 0R0@0/0: 0R0 has no place in a schedule for: optimizer only");
}

TEST(VerifyTest, Placement) {
  EXPECT_EQ(Failure("0F0,1F0,0B0\n1B0\n", kCompute), "placement 1B0@1/0: stage 1 is already on lane 0");
  EXPECT_EQ(Failure("0F0,0B0\n2F0,2B0\n", kCompute), "placement 1F0@-1/-1: stage 1 is on no lane");
}

TEST(VerifyTest, Completeness) {
  EXPECT_EQ(Failure("0F0,0B0,0B1\n", kCompute), "completeness 0F1@0/3: 0F1 is missing");
  EXPECT_EQ(Failure("0F0,0F1,0B0\n", kCompute),
            "completeness 0B1@0/3: 0B1 is missing: stage 0 has no gradient of micro-batch 1");
  EXPECT_EQ(Failure("0F0,0I0\n", kCompute), "completeness 0W0@0/2: 0W0 is missing: 0I0 leaves it to do");
  EXPECT_EQ(Failure("0F0,0W0\n", kCompute),
            "completeness 0I0@0/2: 0I0 is missing: stage 0 has no gradient of micro-batch 0");
  EXPECT_EQ(Failure("0F0,0B0,0W0\n", kCompute), "completeness 0W0@0/2: 0W0 repeats the work of 0B0");
  EXPECT_EQ(Failure("0F0,0B0,0I0,0W0\n", kCompute), "completeness 0I0@0/2: 0I0 repeats the work of 0B0");
  EXPECT_EQ(Failure("0F0,0F0,0B0\n", kCompute), "completeness 0F0@0/1: 0F0 occurs twice");
  EXPECT_EQ(Failure("0F0,0R0,0R0,0B0\n", kCompute), "completeness 0R0@0/2: 0R0 occurs twice");
  EXPECT_EQ(Failure("0F0,0B0\n", {.purpose = SchedulePurpose::kTrainingStep}),
            "completeness 0OPT@0/2: 0OPT is missing");
}

TEST(VerifyTest, Order) {
  EXPECT_EQ(Failure("0B0,0F0\n", kCompute), "order 0B0@0/0: 0B0 stands before 0F0");
  EXPECT_EQ(Failure("0R0,0F0,0B0\n", kCompute), "order 0R0@0/0: 0R0 stands before 0F0");
  EXPECT_EQ(Failure("0F0,0B0,0R0\n", kCompute), "order 0B0@0/1: 0B0 stands before 0R0");
  EXPECT_EQ(Failure("0F0,0W0,0I0\n", kCompute), "order 0W0@0/1: 0W0 stands before 0I0");
  EXPECT_EQ(Failure("0F0,0F1,0B1,0B0\n", kCompute),
            "order 0B0@0/3: gradients must accumulate in ascending micro-batch order: 0B0 follows 0B1");
  EXPECT_EQ(Failure("0F0,0F1,0I0,0B1,0W0\n", kCompute),
            "order 0W0@0/4: gradients must accumulate in ascending micro-batch order: 0W0 follows 0B1");
  EXPECT_EQ(Failure("0F0,0OPT,0B0\n", {.purpose = SchedulePurpose::kTrainingStep}),
            "order 0B0@0/2: 0B0 follows the optimizer step of its stage");
  EXPECT_EQ(Failure("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", kComplete),
            "order 0SEND_F0@0/0: 0SEND_F0 stands before 0F0");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1B0\n", kComplete),
            "order 1SEND_B0@1/2: 1SEND_B0 stands before 1B0");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", kComplete),
            "order 0B0@0/2: 0B0 stands before 0RECV_B0");
}

TEST(VerifyTest, InputGradientsMayRunOutOfOrder) { EXPECT_EQ(Failure("0F0,0F1,0I1,0I0,0W0,0W1\n", kCompute), "ok"); }

TEST(VerifyTest, Matching) {
  EXPECT_EQ(Failure("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", kComplete),
            "matching 0SEND_F0@0/3: 0SEND_F0 is missing: 1RECV_F0 has no partner");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", kComplete),
            "matching 0RECV_B0@0/3: 0RECV_B0 is missing: 1SEND_B0 has no partner");
  EXPECT_EQ(Failure("0F0,0B0\n1F0,1B0\n", kComplete),
            "matching 0SEND_F0@0/2: 0SEND_F0 is missing: 1RECV_F0 is missing too");
  EXPECT_EQ(Failure("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n", kComplete),
            "matching 0SEND_F0@0/1: 0SEND_F0 has no edge: stage 1 is on the same lane");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0B0\n", kComplete),
            "matching 0SEND_F0@0/1: 0SEND_F0 has no edge: stage 1 does not exist");
  EXPECT_EQ(Failure("0RECV_F0,0F0,0B0\n", kComplete), "matching 0RECV_F0@0/0: there is no stage before stage 0");
  EXPECT_EQ(Failure("0F0,0B0,0SEND_B0\n", kComplete), "matching 0SEND_B0@0/2: there is no stage before stage 0");
}

TEST(VerifyTest, CreditsHoldASenderBack) {
  // Lane 1 takes the second activation only after it has sent a gradient that lane 0 awaits after its third send.
  constexpr char kThreeAhead[] =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n";
  EXPECT_EQ(Failure(kThreeAhead, kComplete), "ok");
  EXPECT_EQ(Failure(kThreeAhead, {.purpose = SchedulePurpose::kContribution, .credits = 1}), "ok");
  // Lane 1 sends both gradients before it takes any further activation; lane 0 reads none until it has sent three.
  constexpr char kBothFull[] =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n";
  EXPECT_EQ(Failure(kBothFull, {.purpose = SchedulePurpose::kContribution, .credits = 1}), "ok");
  // Sends of four activations against sends of two gradients, one place each way: both wait for the other to read.
  constexpr char kCross[] =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2,0RECV_B3,0B3\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2,1RECV_F3,1F3,1B3,1SEND_B3\n";
  EXPECT_EQ(Failure(kCross, {.purpose = SchedulePurpose::kContribution, .credits = 2}), "ok");
  EXPECT_EQ(Failure(kCross, {.purpose = SchedulePurpose::kContribution, .credits = 1}),
            "deadlock 0SEND_F3@0/7: 0SEND_F3 waits for the credit of 1RECV_F2; 1RECV_F2 follows 1SEND_B1 on lane 1; "
            "1SEND_B1 waits for the credit of 0RECV_B0; 0RECV_B0 follows 0SEND_F3 on lane 0");
}

TEST(VerifyTest, TheKindsNeedOneCreditPerEdge) {
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const int lanes : {2, 3, 6}) {
      const auto schedule = BuildSchedule({.kind = kind, .lanes = lanes, .micro_batches = 9});
      const auto peaks = Verify(*schedule, {.credits = 1});
      EXPECT_EQ(peaks.ok(), true) << kind << lanes << peaks.status();
    }
  }
}

TEST(VerifyTest, PeaksAreThoseOfTheTable) {
  EXPECT_THAT(Verify(FillDrain(4, 8), kCompute)->full, ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(Verify(OneForwardOneBackward(4, 8), kCompute)->full, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(Verify(OneForwardOneBackward(4, 2), kCompute)->full, ElementsAre(2, 2, 2, 1));
  const auto inference =
      Verify(ForwardOnly(2, 8), {.purpose = SchedulePurpose::kForwardOnly, .with_communication = false});
  EXPECT_THAT(inference->full, ElementsAre(1, 1));
}

TEST(VerifyTest, PeaksCountAChunkAsItsShare) {
  const auto schedule = ParseCsv("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
  const auto peaks = Verify(*schedule, kCompute);
  ASSERT_TRUE(peaks.ok()) << peaks.status();
  EXPECT_EQ(peaks->FullUnits(0), 1);  // two chunks of half a unit
  EXPECT_EQ(peaks->MaxFullUnits(), 1);
}

TEST(VerifyTest, AKeptGraphIsHeldFromTheStart) {
  const Schedule backward = BackwardOnly(2, 5);
  const VerifyOptions options = {.purpose = SchedulePurpose::kBackwardOnly, .with_communication = false};
  EXPECT_THAT(Verify(backward, options)->full, ElementsAre(5, 5));
  const auto recomputed = Verify(InsertRecompute(backward, RecomputeMode::kAlways), options);
  EXPECT_THAT(recomputed->full, ElementsAre(1, 1));
  EXPECT_THAT(recomputed->stashed, ElementsAre(5, 5));
}

TEST(VerifyTest, AnExceededLimitNamesTheActionThatExceedsIt) {
  VerifyOptions options = kCompute;
  options.max_live_activations = 2;
  EXPECT_EQ(Failure("0F0,0F1,0F2,0B0,0B1,0B2\n", options),
            "peak 0F2@0/2: lane 0 holds 3 activations at once, above the limit of 2");
  options.max_live_activations = 3;
  EXPECT_EQ(Failure("0F0,0F1,0F2,0B0,0B1,0B2\n", options), "ok");
}

TEST(VerifyTest, RefusesSizesThatDoNotFitTheActions) {
  Schedule schedule = FillDrain(2, 2);
  schedule.micro_batches = 1;
  EXPECT_THAT(
      std::string(Verify(schedule, kCompute).status().message()),
      StartsWith("schedule: size at lane 0, position 1 (0F1)\n  out of range: the schedule has 2 stages and 1"));
  schedule = FillDrain(2, 2);
  schedule.lanes[1][0].stage = -1;
  EXPECT_FALSE(Verify(schedule, kCompute).ok());
  EXPECT_FALSE(Verify(Schedule{}, kCompute).ok());
  EXPECT_FALSE(Verify(NoMicroBatches(2), kCompute).ok());
  schedule = FillDrain(2, 2);
  schedule.stages = 1'000'000'000;
  EXPECT_FALSE(Verify(schedule, kCompute).ok());
}

// The rule of DualPipeV as it stands, step by step, without a look at which micro-batches there are.
Schedule BareDualPipeV(int lanes, int micro_batches) {
  Schedule schedule{.kind = "dualpipe-v", .stages = 2 * lanes, .micro_batches = micro_batches};
  for (int r = 0; r < lanes; ++r) {
    auto& list = schedule.lanes.emplace_back();
    const int down = r, up = 2 * lanes - 1 - r;
    std::map<int, int> forwards, backwards;
    std::deque<Action> waiting;
    const auto f = [&](int s) { list.push_back({ActionKind::kForward, s, forwards[s]++}); };
    const auto b = [&](int s) { list.push_back({ActionKind::kBackward, s, backwards[s]++}); };
    const auto i = [&](int s) {
      waiting.push_back({ActionKind::kWeightGradient, s, backwards[s]});
      list.push_back({ActionKind::kInputGradient, s, backwards[s]++});
    };
    const auto wq = [&] {
      if (waiting.empty()) return;
      list.push_back(waiting.front());
      waiting.pop_front();
    };
    const auto repeat = [](int times, const auto& what) {
      for (int k = 0; k < times; ++k) what(k);
    };
    repeat(2 * (lanes - r - 1), [&](int) { f(down); });
    repeat(r + 1, [&](int) { f(down), f(up); });
    repeat(lanes - r - 1, [&](int) { i(up), wq(), f(up); });
    repeat(micro_batches - 2 * lanes + r + 1, [&](int) { f(down), b(up), f(up), b(down); });
    repeat(lanes - r - 1, [&](int) { b(up), f(up), b(down); });
    bool split = false;
    repeat(r + 1, [&](int k) {
      if (r % 2 == 1 && k == (r + 1) / 2) split = true;
      split ? i(up) : b(up);
      if (r % 2 == 0 && k == (r + 1) / 2) split = true;
      split ? i(down) : b(down);
    });
    repeat(lanes - r - 1, [&](int) { wq(), i(down); });
    repeat(r + 1, [&](int) { wq(); });
  }
  return schedule;
}

TEST(VerifyTest, TheBareRuleOfDualPipeVNeedsItsMicroBatches) {
  for (const int lanes : {1, 2, 3, 4, 8}) {
    for (const int micro_batches : {2 * lanes - 1, 2 * lanes, 5 * lanes}) {
      EXPECT_EQ(BareDualPipeV(lanes, micro_batches), DualPipeV(lanes, micro_batches)) << lanes << " " << micro_batches;
    }
  }
  EXPECT_TRUE(Verify(BareDualPipeV(4, 7), kCompute).ok());
  // One fewer, and lane 0 runs ahead into a micro-batch that no other lane has: its stage 7 waits for ever.
  Schedule bare = BareDualPipeV(4, 6);
  EXPECT_EQ(ValuesOf(Verify(bare, kCompute).status())["action"], "0F6");
  bare.micro_batches = 7;
  EXPECT_EQ(ValuesOf(Verify(bare, kCompute).status())["action"], "1F6");
  const auto stuck = Simulate(bare, {.stages = std::vector<StageCosts>(8)});
  EXPECT_THAT(std::string(stuck.status().message()), HasSubstr("7F6 needs 6F6, which no lane performs"));
  // The generator leaves that out, which is how short batches of a pipeline run.
  EXPECT_TRUE(Verify(DualPipeV(4, 6), kCompute).ok());
}

TEST(VerifyTest, ALaneCanBlockItself) {
  EXPECT_EQ(Failure("0F0,3F0,3B0,0B0\n2F0,1F0,2B0,1B0\n", kCompute),
            "deadlock 2F0@1/0: 2F0 waits for 1F0; 1F0 follows 2F0 on lane 1");
  EXPECT_EQ(Failure("0F0,3F0,3B0,0B0\n1F0,2F0,1I0,1W0,2B0\n", kCompute),
            "deadlock 1I0@1/2: 1I0 waits for 2B0; 2B0 follows 1I0 on lane 1");
}

TEST(VerifyTest, SplitBackwardsKeepTheOrderOfTheirStage) {
  EXPECT_EQ(Failure("0F0,0I0,0R0,0W0\n", kCompute), "order 0I0@0/1: 0I0 stands before 0R0");
  EXPECT_EQ(Failure("0F0,0F1,0I0,0I1,0W1,0W0\n", kCompute),
            "order 0W0@0/5: gradients must accumulate in ascending micro-batch order: 0W0 follows 0W1");
  EXPECT_EQ(Failure("0F0,0F1,0I0,0I1,0W0,0W1\n", kCompute), "ok");
  // Every stage counts on its own: the other chunk may be ahead or behind.
  EXPECT_EQ(Failure("0F0,1F0,0F1,1F1,1I0,1W0,0I0,1I1,1W1,0W0,0B1\n", kCompute), "ok");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1I0,1W0,1SEND_B0\n", kComplete), "ok");
  EXPECT_EQ(Failure("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_B0,1I0,1W0\n", kComplete),
            "order 1SEND_B0@1/2: 1SEND_B0 stands before 1I0");
  EXPECT_EQ(Failure("0F0,0I0,0W0,0OPT\n", {.purpose = SchedulePurpose::kTrainingStep}), "ok");
  EXPECT_EQ(Failure("0F0,0I0,0OPT,0W0\n", {.purpose = SchedulePurpose::kTrainingStep}),
            "order 0W0@0/3: 0W0 follows the optimizer step of its stage");
}

TEST(VerifyTest, ActivationsLiveUntilTheWeightGradient) {
  VerifyOptions options = kCompute;
  options.max_live_activations = 1;
  EXPECT_EQ(Failure("0F0,0I0,0W0,0F1,0I1,0W1\n", options), "ok");
  EXPECT_EQ(Failure("0F0,0I0,0F1,0W0,0I1,0W1\n", options),
            "peak 0F1@0/2: lane 0 holds 2 activations at once, above the limit of 1");
  // A recomputed one comes back for good with its R: a late W keeps it.
  EXPECT_EQ(Failure("0F0,0F1,0R0,0B0,0R1,0B1\n", options), "ok");
  EXPECT_EQ(Failure("0F0,0F1,0R0,0I0,0R1,0I1,0W0,0W1\n", options),
            "peak 0R1@0/4: lane 0 holds 2 activations at once, above the limit of 1");
}

TEST(VerifyTest, ListsTellWhatTheyAreFor) {
  const auto implied = [](std::string_view csv) {
    const VerifyOptions options = ImpliedOptions(*ParseCsv(csv));
    return std::string(ToString(options.purpose)) + (options.with_communication ? ", messages" : "");
  };
  EXPECT_EQ(implied("0F0,0B0,0OPT\n"), "training step");
  EXPECT_EQ(implied("0F0,0I0,0W0\n"), "contribution");
  EXPECT_EQ(implied("0F0,0SEND_F0\n1RECV_F0,1F0\n"), "forward only, messages");
  EXPECT_EQ(implied("0R0,0B0\n"), "backward only");
  EXPECT_EQ(implied("0OPT\n"), "optimizer only");
}

TEST(CreditsTest, AreTheFewestThatRun) {
  const auto least = [](std::string_view csv) { return MinCredits(*ParseCsv(csv)); };
  EXPECT_EQ(least("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"), 1);
  // The last stage of a loop is sent three before the first reads any.
  EXPECT_EQ(MinCredits(*BuildSchedule({.kind = "looped-bfs", .lanes = 2, .chunks = 2, .micro_batches = 6})), 3);
  EXPECT_EQ(least("0F0,0B0\n"), 0);                                               // moves nothing
  EXPECT_EQ(least("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), 0);  // cannot run
}

}  // namespace
}  // namespace penstock
