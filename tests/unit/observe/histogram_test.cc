#include "engine/observe/histogram.h"

#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "engine/base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMillisecond = 1'000'000;

TEST(BucketsTest, RiseInSteps125) {
  EXPECT_EQ(PhaseBuckets().size(), 16u);
  EXPECT_EQ(CallBuckets().size(), 17u);
  EXPECT_EQ(CheckpointBuckets().size(), 13u);
  std::vector<int64_t> tenths;
  for (int64_t bound : PhaseBuckets().first(7)) tenths.push_back(bound / (kMillisecond / 10));
  EXPECT_THAT(tenths, ElementsAre(1, 2, 5, 10, 20, 50, 100));
  for (BucketBounds bounds : {PhaseBuckets(), CallBuckets(), CheckpointBuckets()}) {
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
  }
}

TEST(DurationHistogramTest, StartsEmpty) {
  const HistogramSnapshot snapshot = DurationHistogram(PhaseBuckets()).Snapshot();
  EXPECT_EQ(snapshot.count(), 0);
  EXPECT_EQ(snapshot.sum_nanos, 0);
}

TEST(DurationHistogramTest, CountsCumulativelyAndIncludesTheBound) {
  DurationHistogram histogram(CallBuckets());  // 1 ms, 2 ms, 5 ms, ...
  histogram.Observe(kMillisecond);
  histogram.Observe(kMillisecond + 1);
  histogram.Observe(2 * kMillisecond);
  histogram.Observe(5 * kMillisecond);
  histogram.Observe(std::numeric_limits<int64_t>::max() / 2);
  const HistogramSnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.cumulative[0], 1);
  EXPECT_EQ(snapshot.cumulative[1], 3);
  EXPECT_EQ(snapshot.cumulative[2], 4);
  EXPECT_EQ(snapshot.cumulative[16], 4);
  EXPECT_EQ(snapshot.count(), 5);
}

TEST(DurationHistogramTest, SumsDurations) {
  DurationHistogram histogram(PhaseBuckets());
  histogram.Observe(3);
  histogram.Observe(4);
  EXPECT_EQ(histogram.Snapshot().sum_nanos, 7);
}

TEST(DurationHistogramTest, ANegativeDurationCountsAsZero) {
  DurationHistogram histogram(PhaseBuckets());
  histogram.Observe(-5);
  EXPECT_EQ(histogram.Snapshot().cumulative[0], 1);
  EXPECT_EQ(histogram.Snapshot().sum_nanos, 0);
}

TEST(DurationHistogramTest, LosesNothingBetweenThreadsAndNeverFalls) {
  constexpr int kThreads = 3, kRounds = 20'000;
  DurationHistogram histogram(PhaseBuckets());
  std::atomic<int> running = kThreads;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(std::make_unique<Thread>("observer", [&] {
      for (int i = 0; i < kRounds; ++i) histogram.Observe(i * 1000);
      --running;
    }));
  }
  HistogramSnapshot before = histogram.Snapshot();
  while (running > 0) {
    const HistogramSnapshot now = histogram.Snapshot();
    for (size_t i = 0; i <= now.bounds.size(); ++i) {
      ASSERT_GE(now.cumulative[i], before.cumulative[i]);
      if (i > 0) {
        ASSERT_GE(now.cumulative[i], now.cumulative[i - 1]);
      }
    }
    before = now;
  }
  threads.clear();
  EXPECT_EQ(histogram.Snapshot().count(), kThreads * kRounds);
  EXPECT_EQ(histogram.Snapshot().sum_nanos, int64_t{kThreads} * kRounds * (kRounds - 1) / 2 * 1000);
}

TEST(GaugeCellTest, GoesUpAndDown) {
  GaugeCell gauge;
  gauge.Set(2.5);
  gauge.Add(-4);
  EXPECT_EQ(gauge.value(), -1.5);
}

TEST(CounterCellDeathTest, RefusesToFall) { EXPECT_DEATH(CounterCell().Add(-1), "broken invariant"); }

}  // namespace
}  // namespace penstock
