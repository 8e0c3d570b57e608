#include "engine/plan/lane_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/schedule/generators.h"
#include "engine/schedule/recompute_pass.h"

namespace penstock {
namespace {

// Every micro-batch: 10 bytes of stash and 1 of input on each stage.
std::vector<BufferBytes> Memory(const ScheduleRequest& request, RecomputeMode mode,
                                const std::vector<SkipRoute>& skips = {}) {
  absl::StatusOr<Schedule> lists = Generate(request);
  EXPECT_TRUE(lists.ok()) << lists.status();
  *lists = InsertRecompute(*std::move(lists), mode);
  ScheduleCosts costs;
  costs.stages.resize(lists->stages);
  const absl::StatusOr<Simulation> simulation = Simulate(*lists, costs);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  std::vector<StageBytes> stages(lists->stages, {.parameters = 100, .optimizer = 200, .stash = 10, .input = 1});
  stages[0].input = 0;
  return LaneMemory(*lists, *simulation, stages, skips);
}

int64_t Of(const BufferBytes& bytes, BufferClass buffer) { return bytes[buffer]; }

TEST(LaneMemory, ActivationsAreWhatTheVerifierCounts) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (!kind.trains || kind.name == "lag") continue;
    ScheduleRequest request;
    request.kind = std::string(kind.name);
    request.lanes = 4;
    request.micro_batches = 8;
    request.chunks = kind.usual_chunks;
    for (RecomputeMode mode :
         {RecomputeMode::kNever, RecomputeMode::kAlways, RecomputeMode::kExceptLast, RecomputeMode::kSkipAdjacent}) {
      const std::vector<BufferBytes> memory = Memory(request, mode);
      Schedule lists = InsertRecompute(*Generate(request), mode);
      const PeakActivations peaks = ComputePeaks(lists);
      for (int lane = 0; lane < 4; ++lane) {
        EXPECT_EQ(Of(memory[lane], BufferClass::kActivations), 10 * peaks.full[lane])
            << kind.name << " " << ToString(mode) << " lane " << lane;
        EXPECT_EQ(Of(memory[lane], BufferClass::kWeights), 100 * kind.usual_chunks);
        EXPECT_EQ(Of(memory[lane], BufferClass::kGradients), 100 * kind.usual_chunks);
        EXPECT_EQ(Of(memory[lane], BufferClass::kOptimizerState), 200 * kind.usual_chunks);
      }
    }
  }
}

TEST(LaneMemory, InputsAreHeldFromTheirProducerToTheLastBackward) {
  const std::vector<BufferBytes> memory =
      Memory({.kind = "gpipe", .lanes = 2, .micro_batches = 4}, RecomputeMode::kNever);
  EXPECT_EQ(Of(memory[0], BufferClass::kReceivedInputs), 0);
  EXPECT_EQ(Of(memory[1], BufferClass::kReceivedInputs), 4);
  EXPECT_EQ(Of(memory[1], BufferClass::kReceivedGradients), 0);
  // At equal costs a gradient is used as soon as it arrives, and the next one arrives before the use has ended.
  EXPECT_EQ(Of(memory[0], BufferClass::kReceivedGradients), 2);
}

TEST(LaneMemory, RecomputationKeepsInputsButFewActivations) {
  const ScheduleRequest request = {.kind = "gpipe", .lanes = 2, .micro_batches = 4};
  const std::vector<BufferBytes> kept = Memory(request, RecomputeMode::kNever);
  const std::vector<BufferBytes> again = Memory(request, RecomputeMode::kAlways);
  EXPECT_EQ(Of(kept[1], BufferClass::kActivations), 40);
  EXPECT_EQ(Of(again[1], BufferClass::kActivations), 10);
  EXPECT_EQ(Of(again[1], BufferClass::kReceivedInputs), 4);
}

TEST(LaneMemory, SkipsAreHeldWhereTheyGo) {
  const ScheduleRequest request = {.kind = "1f1b", .lanes = 4, .micro_batches = 4};
  const std::vector<BufferBytes> without = Memory(request, RecomputeMode::kNever);
  const std::vector<BufferBytes> with =
      Memory(request, RecomputeMode::kNever, {{.edge = {0, 3}, .names = {{"", "x"}}, .bytes = 1000}});
  // Stage 0 runs up to four forwards ahead of the last stage.
  EXPECT_GE(Of(with[3], BufferClass::kReceivedInputs) - Of(without[3], BufferClass::kReceivedInputs), 3000);
  EXPECT_GE(Of(with[0], BufferClass::kReceivedGradients) - Of(without[0], BufferClass::kReceivedGradients), 1000);
  EXPECT_EQ(Of(with[1], BufferClass::kReceivedInputs), Of(without[1], BufferClass::kReceivedInputs));
}

TEST(LaneMemory, AnInputIsCountedWithoutTheSkipsInIt) {
  Plan plan;
  plan.stages = {{.layers = {"a"}, .input_bytes = 5}, {.layers = {"b"}, .input_bytes = 30}};
  plan.skips = {{.edge = {0, 1}, .names = {{"", "x"}}, .bytes = 10}};
  const std::vector<StageBytes> stages = BytesOf(plan);
  EXPECT_EQ(stages[0].input, 5);
  EXPECT_EQ(stages[1].input, 20);
}

TEST(LaneMemory, CountsMessagesBetweenLanesOnly) {
  EXPECT_EQ(MessageCount({0, 1, 2, 3}, {}, 8), 2 * 3 * 8);
  EXPECT_EQ(MessageCount({0, 1, 1, 0}, {}, 8), 2 * 2 * 8);
  EXPECT_EQ(MessageCount({0, 1, 2}, {{.edge = {0, 2}, .names = {}, .bytes = 1}}, 4), 2 * 3 * 4);
}

TEST(LaneMemory, NamesTheLargestClass) {
  BufferBytes bytes;
  bytes[BufferClass::kActivations] = 7;
  bytes[BufferClass::kWeights] = 3;
  EXPECT_EQ(bytes.largest(), BufferClass::kActivations);
  EXPECT_EQ(bytes.total(), 10);
  EXPECT_EQ(ToString(BufferClass::kReceivedInputs), "received inputs");
}

}  // namespace
}  // namespace penstock
