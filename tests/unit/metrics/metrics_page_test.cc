#include "server/metrics/metrics_page.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "engine/observe/bubble.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metric_names.h"
#include "tests/unit/metrics/sample_metrics.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

// Every combination of the fixed label values of a row; free labels are left to any value.
std::vector<std::vector<std::string>> FixedCombinations(const MetricInfo& info) {
  std::vector<std::vector<std::string>> combinations = {{}};
  for (const MetricLabel& label : info.labels) {
    if (label.values.empty()) continue;
    std::vector<std::vector<std::string>> longer;
    for (const auto& combination : combinations) {
      for (std::string_view value : label.values) {
        longer.push_back(combination);
        longer.back().push_back(std::string(label.name) + "=\"" + std::string(value) + "\"");
      }
    }
    combinations = std::move(longer);
  }
  return combinations;
}

TEST(MetricsPageTest, EveryFamilyStandsOnThePageBeforeTheFirstBatch) {
  SampleMetrics sample;
  const std::string page = MetricsPage(sample.registry);
  for (const MetricInfo& info : MetricTable()) {
    EXPECT_THAT(page, HasSubstr("# HELP " + std::string(info.name) + " " + std::string(info.help) + "\n"));
    EXPECT_THAT(page, HasSubstr("# TYPE " + std::string(info.name) + " " + std::string(NameOf(info.type)) + "\n"));
  }
}

TEST(MetricsPageTest, NothingUnregisteredStandsOnThePage) {
  SampleMetrics sample;
  std::set<std::string> names;
  for (const MetricInfo& info : MetricTable()) {
    const std::string name(info.name);
    if (info.type != MetricType::kHistogram) names.insert(name);
    if (info.type == MetricType::kHistogram) names.insert({name + "_bucket", name + "_sum", name + "_count"});
  }
  for (const auto& [key, value] : SamplesOf(MetricsPage(sample.registry))) {
    EXPECT_TRUE(names.contains(key.substr(0, key.find('{')))) << key;
  }
}

TEST(MetricsPageTest, EveryLabelValueExistsWithItsOwner) {
  SampleMetrics sample;
  const auto samples = SamplesOf(MetricsPage(sample.registry));
  for (const MetricInfo& info : MetricTable()) {
    for (const auto& combination : FixedCombinations(info)) {
      bool found = false;
      for (const auto& [key, value] : samples) {
        bool match = key.starts_with(info.name);
        for (const std::string& label : combination) match = match && key.find(label) != std::string::npos;
        found = found || match;
      }
      EXPECT_TRUE(found) << info.name << " " << ::testing::PrintToString(combination);
    }
  }
}

TEST(MetricsPageTest, StageTimesSumToTheLanesAge) {
  SampleMetrics sample;
  const StateTimes before = sample.pipeline->lane(0).state.Snapshot();
  sample.clock.AdvanceNanos(kSecond);
  sample.pipeline->lane(0).state.Enter(StageState::kForward);
  sample.clock.AdvanceNanos(3 * kSecond);
  sample.pipeline->lane(0).state.Enter(StageState::kWaitGradient);
  sample.clock.AdvanceNanos(kSecond);
  const auto samples = SamplesOf(MetricsPage(sample.registry));
  const std::string lane = R"(penstock_stage_time_seconds_total{pipeline="gpt",lane="0",device="cpu:0",state=")";
  EXPECT_EQ(samples.at(lane + "setup\"}"), 1);
  EXPECT_EQ(samples.at(lane + "forward\"}"), 3);
  EXPECT_EQ(samples.at(lane + "wait_gradient\"}"), 1);
  double sum = 0;
  for (const StageStateInfo& info : StageStates()) sum += samples.at(lane + std::string(info.name) + "\"}");
  EXPECT_EQ(sum, 5);
  // The page, read by another program, gives the bubble that the engine computes.
  EXPECT_EQ(TimesBetween(before, sample.pipeline->lane(0).state.Snapshot()).MeasuredBubble(), 0.25);
}

TEST(MetricsPageTest, HistogramsAreCumulativeInSeconds) {
  SampleMetrics sample;
  LaneMetrics& lane = sample.pipeline->lane(1);
  lane.ObservePhase(Phase::kForward, 100'000);
  lane.ObservePhase(Phase::kForward, 150'000);
  lane.ObservePhase(Phase::kForward, 20 * kSecond);
  const auto samples = SamplesOf(MetricsPage(sample.registry));
  const std::string labels = R"({pipeline="gpt",lane="1",device="cpu:1",phase="forward")";
  const std::string bucket = "penstock_phase_duration_seconds_bucket" + labels + ",le=\"";
  EXPECT_EQ(samples.at(bucket + "0.0001\"}"), 1);
  EXPECT_EQ(samples.at(bucket + "0.0002\"}"), 2);
  EXPECT_EQ(samples.at(bucket + "10\"}"), 2);
  EXPECT_EQ(samples.at(bucket + "+Inf\"}"), 3);
  EXPECT_EQ(samples.at("penstock_phase_duration_seconds_count" + labels + "}"), 3);
  EXPECT_DOUBLE_EQ(samples.at("penstock_phase_duration_seconds_sum" + labels + "}"), 20.00025);
}

TEST(MetricsPageTest, CellsAppearUnderTheirLabels) {
  SampleMetrics sample;
  PipelineMetrics& pipeline = *sample.pipeline;
  pipeline.BatchStarted(BatchMode::kForward);
  pipeline.BatchEnded(BatchMode::kForward, BatchOutcome::kCancelled, 1, kSecond);
  pipeline.nonfinite_steps[NonfiniteKind::kGradient].Add();
  pipeline.rejected[RejectReason::kDraining].Add(3);
  pipeline.inference_runs.Add();
  pipeline.queues[WorkQueue::kInfer].depth.Set(5);
  pipeline.queues[WorkQueue::kInfer].oldest_nanos = sample.clock.NowNanos() - 2 * kSecond;
  sample.registry.server().handles[HandleGauge::kFailed].Set(2);
  sample.registry.server().handles_ended[HandleEnd::kExpired].Add(4);
  sample.registry.server().ready_conditions[ReadyCondition::kModel].Set(1);
  sample.registry.server().MethodOf("/penstock.v1.WorkService/TrainStep").Handled(8, kSecond);
  const auto samples = SamplesOf(MetricsPage(sample.registry));
  EXPECT_EQ(samples.at(R"(penstock_batches_total{pipeline="gpt",mode="forward",outcome="cancelled"})"), 1);
  EXPECT_EQ(samples.at(R"(penstock_batches_total{pipeline="gpt",mode="forward",outcome="ok"})"), 0);
  EXPECT_EQ(samples.at(R"(penstock_nonfinite_steps_total{pipeline="gpt",kind="gradient"})"), 1);
  EXPECT_EQ(samples.at(R"(penstock_admission_rejected_total{pipeline="gpt",reason="draining"})"), 3);
  EXPECT_EQ(samples.at(R"(penstock_inference_runs_total{pipeline="gpt"})"), 1);
  EXPECT_EQ(samples.at(R"(penstock_queue_depth{pipeline="gpt",queue="infer"})"), 5);
  EXPECT_EQ(samples.at(R"(penstock_queue_oldest_age_seconds{pipeline="gpt",queue="infer"})"), 2);
  EXPECT_EQ(samples.at(R"(penstock_handles{state="failed"})"), 2);
  EXPECT_EQ(samples.at(R"(penstock_handles_ended_total{reason="expired"})"), 4);
  EXPECT_EQ(samples.at(R"(penstock_ready_condition{condition="model"})"), 1);
  EXPECT_EQ(samples.at("grpc_server_handled_total{grpc_type=\"unary\",grpc_service=\"penstock.v1.WorkService\","
                       "grpc_method=\"TrainStep\",grpc_code=\"ResourceExhausted\"}"),
            1);
  EXPECT_EQ(samples.at("penstock_schedule_info{pipeline=\"gpt\",schedule=\"1f1b\",stages=\"2\",chunks=\"1\","
                       "micro_batches=\"4\",checkpoint_mode=\"except_last\"}"),
            1);
}

TEST(MetricsPageTest, MemoryAndLinksAppearByKind) {
  SampleMetrics sample;
  LaneMetrics& lane = sample.pipeline->lane(0);
  (*lane.memory)[MemoryKind::kWeights].Set(4096);
  const MemoryShare kept(lane.memory, MemoryKind::kStash, 512);
  { const MemoryShare given_back(lane.memory, MemoryKind::kStash, 100); }
  lane.LinkTo({.to = 1, .kind = LinkKind::kActivation})->bytes.Add(77);
  lane.LinkTo({.to = 1, .kind = LinkKind::kActivation})->nanos.Add(kSecond / 2);
  EXPECT_EQ(lane.LinkTo({.to = 1, .kind = LinkKind::kGradient}), nullptr);
  lane.out_of_memory.Add();
  const auto samples = SamplesOf(MetricsPage(sample.registry));
  const std::string labels = R"({pipeline="gpt",lane="0",device="cpu:0")";
  EXPECT_EQ(samples.at("penstock_device_memory_bytes" + labels + ",kind=\"weights\"}"), 4096);
  EXPECT_EQ(samples.at("penstock_device_memory_bytes" + labels + ",kind=\"stash\"}"), 512);
  EXPECT_EQ(samples.at("penstock_out_of_memory_total" + labels + "}"), 1);
  EXPECT_EQ(samples.at(R"(penstock_link_bytes_total{pipeline="gpt",src="0",dst="1",kind="activation"})"), 77);
  EXPECT_EQ(samples.at(R"(penstock_link_transfer_seconds_total{pipeline="gpt",src="0",dst="1",kind="activation"})"),
            0.5);
  EXPECT_EQ(samples.at(R"(penstock_device_memory_limit_bytes{device="cpu:0"})"), 1 << 20);
  EXPECT_EQ(samples.at(R"(penstock_device_allocator_bytes{device="cuda:0",use="allocated"})"), 40);
  EXPECT_EQ(samples.at(R"(penstock_device_allocator_bytes{device="cuda:0",use="cached"})"), 24);
  for (const char* device : {"cpu:0", "cuda:1"}) {
    EXPECT_FALSE(
        samples.contains(absl::StrCat("penstock_device_allocator_bytes{device=\"", device, "\",use=\"allocated\"}")));
  }
}

TEST(MetricsPageTest, TheTimeOfALanesThreadIsThatOfACpuOnly) {
  SampleMetrics sample;
  const auto pipeline = sample.registry.AddPipeline("one", {{.lane = 0, .device = "cuda:0", .layers = "0-3"}},
                                                    {.kind = "1f1b", .stages = 1, .micro_batches = 4});
  sample.pipeline->lane(0).compute_nanos.Add(3 * kSecond);
  const std::string page = MetricsPage(sample.registry);
  EXPECT_EQ(SamplesOf(page).at(
                R"(penstock_device_busy_seconds_total{pipeline="gpt",lane="0",device="cpu:0",kind="compute"})"),
            3);
  EXPECT_THAT(page, Not(HasSubstr(R"(penstock_device_busy_seconds_total{pipeline="one")")));
}

TEST(MetricsPageTest, APipelinesSeriesGoWithIt) {
  SampleMetrics sample;
  EXPECT_THAT(MetricsPage(sample.registry), HasSubstr("pipeline=\"gpt\""));
  sample.registry.RemovePipeline(*sample.pipeline);
  const std::string page = MetricsPage(sample.registry);
  EXPECT_THAT(page, Not(HasSubstr("pipeline=")));
  EXPECT_THAT(page, Not(HasSubstr("penstock_stage_time"))) << "a family without samples has no header";
  EXPECT_THAT(page, HasSubstr("penstock_ready 0\n"));
}

// Of all samples that several ranks export of a pipeline, none stands on two pages, and none is missing.
TEST(MetricsPageTest, ARankTellsOfItsOwnLanesAndTheLeaderOfThePipeline) {
  testing::FakeClock clock;
  const std::vector<LaneDescription> lanes = {
      {.lane = 0, .device = "cpu:0", .rank = Rank(0), .links = {{.to = 1, .kind = LinkKind::kActivation}}},
      {.lane = 1, .device = "1/cpu:0", .rank = Rank(1), .links = {{.to = 0, .kind = LinkKind::kGradient}}}};
  const auto of_pipeline = [&](Rank self, const std::vector<LaneDescription>& of) {
    MetricsRegistry registry(&clock, TraceRing::kDefaultEvents, self);
    const auto pipeline = registry.AddPipeline("gpt", of);
    std::set<std::string> keys;
    for (const auto& [key, value] : SamplesOf(MetricsPage(registry))) {
      if (key.find("pipeline=\"gpt\"") != std::string::npos) keys.insert(key);
    }
    return keys;
  };
  const std::set<std::string> leader = of_pipeline(Rank(0), lanes);
  const std::set<std::string> other = of_pipeline(Rank(1), lanes);
  for (const std::string& key : leader) EXPECT_FALSE(other.contains(key)) << key;
  for (const std::string& key : leader) {
    if (key.starts_with("penstock_schedule_")) continue;  // of the plan, which the leader has for all lanes
    EXPECT_THAT(key, Not(HasSubstr("device=\"1/cpu:0\"")));
  }
  EXPECT_TRUE(leader.contains("penstock_schedule_ideal_bubble_ratio{pipeline=\"gpt\",lane=\"1\",device=\"1/cpu:0\"}"));
  EXPECT_TRUE(other.contains(
      "penstock_device_busy_seconds_total{pipeline=\"gpt\",lane=\"1\",device=\"1/cpu:0\",kind=\"compute\"}"));
  for (const std::string& key : other)
    EXPECT_THAT(key, ::testing::AnyOf(HasSubstr("lane=\"1\""), HasSubstr("src=\"1\"")));
  std::vector<LaneDescription> here = lanes;
  here[1].rank = Rank(0);
  EXPECT_EQ(leader.size() + other.size(), of_pipeline(Rank(0), here).size());
  EXPECT_EQ(std::count_if(other.begin(), other.end(),
                          [](const std::string& key) {
                            return key.starts_with("penstock_stage_info{") &&
                                   key.find("rank=\"1\"") != std::string::npos;
                          }),
            1);
}

TEST(MetricsPageTest, LabelValuesAreEscaped) {
  testing::FakeClock clock;
  MetricsRegistry registry(&clock);
  const auto pipeline = registry.AddPipeline("a\"b\\c\nd", {});
  EXPECT_THAT(MetricsPage(registry), HasSubstr("penstock_step_number{pipeline=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

TEST(MetricsPageTest, CountersNeverFallWhileALaneRuns) {
  MetricsRegistry registry(RealClock());
  const auto pipeline = registry.AddPipeline("gpt", {{.lane = 0, .device = "cpu:0"}});
  std::atomic<bool> stop = false;
  Thread lane("lane", [&] {
    for (int i = 0; !stop; ++i) {
      pipeline->lane(0).state.Enter(static_cast<StageState>(i % kStageStateCount));
      pipeline->lane(0).ObservePhase(static_cast<Phase>(i % kPhaseNames.size()), i);
      pipeline->BatchStarted(BatchMode::kInfer);
      pipeline->BatchEnded(BatchMode::kInfer, BatchOutcome::kOk, 1, i);
    }
  });
  auto before = SamplesOf(MetricsPage(registry));
  for (int scrape = 0; scrape < 50; ++scrape) {
    const auto now = SamplesOf(MetricsPage(registry));
    for (const auto& [key, value] : before) {
      const std::string name = key.substr(0, key.find('{'));
      const bool rises =
          name.ends_with("_total") || name.ends_with("_count") || name.ends_with("_bucket") || name.ends_with("_sum");
      if (rises) {
        ASSERT_GE(now.at(key), value) << key;
      }
    }
    before = now;
  }
  stop = true;
}

// Two pipelines of eight lanes, and more methods than the daemon has.
TEST(MetricsPageTest, StaysWithinItsBudgetOfSeries) {
  testing::FakeClock clock;
  MetricsRegistry registry(&clock);
  std::vector<LaneDescription> lanes(8);
  for (int i = 0; i < 8; ++i) {
    lanes[i] = {.lane = i, .device = "cpu:" + std::to_string(i)};
    lanes[i].links = {{.to = (i + 1) % 8, .kind = LinkKind::kActivation},
                      {.to = (i + 7) % 8, .kind = LinkKind::kGradient}};
  }
  registry.AddPipeline("a", lanes);
  registry.AddPipeline("b", lanes);
  for (int i = 0; i < 50; ++i) registry.server().AddMethod("unary", "service", "Method" + std::to_string(i));
  EXPECT_LE(SamplesOf(MetricsPage(registry)).size(), 6000u);
}

}  // namespace
}  // namespace penstock
