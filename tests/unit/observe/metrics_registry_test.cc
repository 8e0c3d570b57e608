#include "engine/observe/metrics_registry.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Names(const MetricsRegistry& registry) {
  std::vector<std::string> names;
  for (const auto& pipeline : registry.Snapshot()) names.push_back(pipeline->name());
  return names;
}

class MetricsRegistryTest : public ::testing::Test {
 protected:
  testing::FakeClock clock_;
  MetricsRegistry registry_{&clock_};
};

TEST_F(MetricsRegistryTest, HoldsPipelinesUntilTheyAreRemoved) {
  const auto b = registry_.AddPipeline("b", {});
  const auto a = registry_.AddPipeline("a", {});
  EXPECT_THAT(Names(registry_), ElementsAre("a", "b"));
  EXPECT_EQ(registry_.Find("a"), a);
  registry_.RemovePipeline(*a);
  EXPECT_THAT(Names(registry_), ElementsAre("b"));
  EXPECT_EQ(registry_.Find("a"), nullptr);
  registry_.RemovePipeline(*a);
  registry_.RemovePipeline(*b);
  EXPECT_THAT(Names(registry_), IsEmpty());
}

TEST_F(MetricsRegistryTest, AnOldOwnerDoesNotRemoveTheOneThatTookItsName) {
  const auto first = registry_.AddPipeline("gpt", {});
  const auto second = registry_.AddPipeline("gpt", {});
  registry_.RemovePipeline(*first);
  EXPECT_EQ(registry_.Find("gpt"), second);
}

TEST_F(MetricsRegistryTest, ARemovedPipelineStaysReadableInASnapshot) {
  auto pipeline = registry_.AddPipeline("gpt", {{.lane = 0}});
  const auto snapshot = registry_.Snapshot();
  registry_.RemovePipeline(*pipeline);
  pipeline.reset();
  EXPECT_EQ(snapshot[0]->lane(0).state.state(), StageState::kSetup);
}

TEST_F(MetricsRegistryTest, PipelinesComeAndGoBesideReaders) {
  Thread changer("changer", [&] {
    for (int i = 0; i < 2000; ++i) registry_.RemovePipeline(*registry_.AddPipeline("gpt", {{.lane = 0}}));
  });
  for (int i = 0; i < 2000; ++i) {
    for (const auto& pipeline : registry_.Snapshot()) EXPECT_EQ(pipeline->lane_count(), 1);
  }
  changer.Join();
  EXPECT_THAT(Names(registry_), IsEmpty());
}

TEST(TraceDroppedTest, CountsOverwrittenTraceRecordsAlsoOfPipelinesThatAreGone) {
  testing::FakeClock clock;
  MetricsRegistry registry(&clock, /*trace_events=*/16);
  const auto pipeline = registry.AddPipeline("gpt", {{.lane = 0}});
  for (int i = 0; i < 20; ++i) pipeline->lane(0).trace.actions.Record({});
  EXPECT_EQ(registry.TraceDropped(), 4);
  registry.RemovePipeline(*pipeline);
  EXPECT_EQ(registry.TraceDropped(), 4);
  const auto next = registry.AddPipeline("gpt", {{.lane = 0}});
  for (int i = 0; i < 17; ++i) next->lane(0).trace.actions.Record({});
  EXPECT_EQ(registry.TraceDropped(), 5);
  registry.AddPipeline("gpt", {{.lane = 0}});  // takes its place
  EXPECT_EQ(registry.TraceDropped(), 5);
}

}  // namespace
}  // namespace penstock
