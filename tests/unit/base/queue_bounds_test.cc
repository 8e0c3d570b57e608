#include "engine/base/queue_bounds.h"

#include <map>
#include <string>

#include "engine/base/error.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

constexpr QueueBounds::Limits kLimits = {.calls = 8, .bytes = 80, .retry_after_ms = 250};

TEST(QueueBounds, OneCallerAloneMayHaveThreeQuarters) {
  QueueBounds bounds("training", kLimits);
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(bounds.Check("ann", 10).ok()) << i;
    bounds.Add("ann", 10);
  }
  const absl::Status more = bounds.Check("ann", 0);
  EXPECT_EQ(more.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(more), "CALLER_QUOTA");
  EXPECT_EQ(ValuesOf(more),
            (std::map<std::string, std::string>{
                {"queue", "training"}, {"limit", "requests"}, {"limit_value", "6"}, {"retry_after_ms", "250"}}));
  bounds.Remove("ann", 10);
  EXPECT_TRUE(bounds.Check("ann", 10).ok());
  EXPECT_EQ(ValuesOf(bounds.Check("ann", 11))["limit"], "bytes");
}

TEST(QueueBounds, BesideOthersItMayHaveAQuarterAndTheFirstCallOfACallerAlwaysFits) {
  QueueBounds bounds("training", kLimits);
  bounds.Add("ann", 20);
  bounds.Add("ann", 0);
  bounds.Add("bob", 60);
  EXPECT_EQ(ReasonOf(bounds.Check("ann", 0)), "CALLER_QUOTA");
  EXPECT_TRUE(bounds.Check("eve", 0).ok());
  EXPECT_EQ(ReasonOf(bounds.Check("eve", 1)), "QUEUE_FULL");
}

TEST(QueueBounds, AFullQueueIsFullForEverybodyUntilSomethingLeaves) {
  QueueBounds bounds("training", kLimits);
  for (int i = 0; i < 8; ++i) bounds.Add(std::to_string(i), 10);
  const absl::Status full = bounds.Check("ann", 0);
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_EQ(ValuesOf(full)["limit_value"], "8");
  bounds.Remove("3", 10);
  EXPECT_TRUE(bounds.Check("ann", 10).ok());
  EXPECT_EQ(ReasonOf(bounds.Check("ann", 11)), "QUEUE_FULL");
}

// A caller whose calls have all left is none of the others that halve a share.
TEST(QueueBounds, WhoHasNothingInTheQueueIsForgotten) {
  QueueBounds bounds("training", kLimits);
  bounds.Add("ann", 0);
  bounds.Add("ann", 0);
  bounds.Add("bob", 0);
  EXPECT_FALSE(bounds.Check("ann", 0).ok());
  bounds.Remove("bob", 0);
  EXPECT_TRUE(bounds.Check("ann", 0).ok());
}

}  // namespace
}  // namespace penstock
