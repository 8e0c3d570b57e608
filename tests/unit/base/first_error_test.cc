#include "engine/base/first_error.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(FirstErrorTest, StartsWithoutAnError) {
  FirstError errors;
  EXPECT_FALSE(errors.Failed());
  EXPECT_TRUE(errors.status().ok());
  EXPECT_EQ(errors.count(), 0);
}

TEST(FirstErrorTest, KeepsTheFirstAndCountsTheRest) {
  FirstError errors;
  EXPECT_TRUE(errors.Record(absl::InternalError("first")));
  EXPECT_FALSE(errors.Record(absl::AbortedError("second")));
  EXPECT_TRUE(errors.Failed());
  EXPECT_EQ(errors.status().message(), "first");
  EXPECT_EQ(errors.count(), 2);
}

TEST(FirstErrorTest, OkIsNoError) {
  FirstError errors;
  EXPECT_FALSE(errors.Record(absl::OkStatus()));
  EXPECT_FALSE(errors.Failed());
  EXPECT_EQ(errors.count(), 0);
}

TEST(FirstErrorTest, ExactlyOneOfManyThreadsWins) {
  FirstError errors;
  std::vector<int> won(4, 0);
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(std::make_unique<Thread>(absl::StrCat("ps-test-", i), [&errors, &won, i] {
        for (int k = 0; k < 100; ++k) {
          if (errors.Record(absl::InternalError(absl::StrCat(i)))) ++won[i];
        }
      }));
    }
  }
  EXPECT_EQ(errors.count(), 400);
  EXPECT_EQ(won[0] + won[1] + won[2] + won[3], 1);
  ASSERT_TRUE(errors.Failed());
  EXPECT_EQ(won[std::stoi(std::string(errors.status().message()))], 1);
}

}  // namespace
}  // namespace penstock
