#include "engine/device/memory_claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/device/device.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(MemoryClaims, RefusesWhatIsLeftToNobodyAndSaysWhoHasIt) {
  MemoryClaims claims(100);
  const auto results = *claims.Take("results", 10);
  const auto gpt = *claims.Take("pipeline gpt", 60);
  const absl::Status refused = claims.Take("pipeline mlp", 31).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "HOST_MEMORY");
  EXPECT_EQ(
      std::string(refused.message()),
      "pipeline mlp needs 31 bytes of the host's memory; of 100 (--memory-limit) 70 are claimed (pipeline gpt 60, "
      "results 10) and 30 are left");
  EXPECT_EQ(ValuesOf(refused)["limit_value"], "100");
  EXPECT_EQ(claims.claimed_bytes(), 70);
  EXPECT_TRUE(claims.Take("pipeline mlp", 30).ok());
}

TEST(MemoryClaims, AClaimThatGoesIsFree) {
  MemoryClaims claims(100);
  auto gpt = *claims.Take("pipeline gpt", 100);
  EXPECT_FALSE(claims.Take("pipeline mlp", 1).ok());
  gpt.reset();
  EXPECT_EQ(claims.left_bytes(), 100);
  EXPECT_TRUE(claims.Take("pipeline mlp", 100).ok());
}

TEST(MemoryClaims, AClaimThatCannotGrowStaysAsItWas) {
  MemoryClaims claims(100);
  const auto gpt = *claims.Take("pipeline gpt", 60);
  const auto mlp = *claims.Take("pipeline mlp", 30);
  EXPECT_EQ(ReasonOf(gpt->Resize(71)), "HOST_MEMORY");
  EXPECT_EQ(claims.claimed_bytes(), 90);
  EXPECT_TRUE(gpt->Resize(70).ok());
  EXPECT_TRUE(mlp->Resize(5).ok());
  EXPECT_EQ(claims.claimed_bytes(), 75);
}

TEST(MemoryClaims, TellsTheSumWhenItChanges) {
  std::vector<int64_t> told;
  MemoryClaims claims(100, [&](int64_t claimed) { told.push_back(claimed); });
  {
    const auto gpt = *claims.Take("pipeline gpt", 60);
    EXPECT_FALSE(gpt->Resize(101).ok());
    EXPECT_TRUE(gpt->Resize(40).ok());
  }
  EXPECT_THAT(told, ::testing::ElementsAre(60, 40, 0));
}

// Of two that each fit alone exactly one gets it, whatever the order.
TEST(MemoryClaims, ExactlyOneOfTwoWinsTheRest) {
  for (int round = 0; round < 200; ++round) {
    MemoryClaims claims(100);
    std::vector<std::unique_ptr<MemoryClaims::Claim>> got(2);
    std::atomic<int> waiting = 2;
    std::vector<std::unique_ptr<Thread>> callers;
    for (int i = 0; i < 2; ++i) {
      callers.push_back(std::make_unique<Thread>("caller", [&, i] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        auto claim = claims.Take(absl::StrCat("pipeline ", i), 60);
        if (claim.ok()) got[i] = *std::move(claim);
      }));
    }
    for (const auto& caller : callers) caller->Join();
    ASSERT_NE(got[0] == nullptr, got[1] == nullptr);
    ASSERT_EQ(claims.claimed_bytes(), 60);
  }
}

TEST(MemoryClaims, TheDefaultLeavesATenth) {
  EXPECT_LE(DefaultMemoryLimit(), MachineMemoryBytes() * 9 / 10);
  EXPECT_GT(DefaultMemoryLimit(), MachineMemoryBytes() / 2);
}

}  // namespace
}  // namespace penstock
