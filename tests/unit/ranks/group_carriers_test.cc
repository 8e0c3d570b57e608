// The edges of one generation after the other, over real carriers.

#include "server/ranks/group_carriers.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/timer_queue.h"

namespace penstock {
namespace {

const ChannelName kChannel = {"p", Epoch(1)};

GroupIdentity Generation(uint32_t generation) {
  GroupIdentity group = {.epoch = Epoch(1), .generation = generation};
  group.key.fill('k');
  return group;
}

// Two ranks of a group.
class GroupCarriersTest : public ::testing::Test {
 protected:
  GroupCarriers::Options Options(int rank) {
    return {.self = Rank(rank),
            .transport = PeerTransport::kGrpc,
            .host = [] { return std::string("127.0.0.1"); },
            .timers = &timers_,
            .clock = RealClock()};
  }
  Group Prepare(uint32_t generation) {
    Group group = {.identity = Generation(generation), .carrier_addresses = {}};
    for (GroupCarriers* one : {&zero_, &one_}) {
      auto address = one->Prepare(group.identity);
      EXPECT_TRUE(address.ok()) << address.status();
      group.carrier_addresses[one->self()] = *address;
    }
    return group;
  }

  void Form(const Group& group) {
    for (GroupCarriers* one : {&zero_, &one_}) EXPECT_TRUE(one->Form(group).ok());
  }

  TimerQueue timers_{RealClock()};
  GroupCarriers zero_{Options(0)};
  GroupCarriers one_{Options(1)};
};

TEST_F(GroupCarriersTest, EdgesAreGivenOnceTheirGenerationIsFormed) {
  const Group first = Prepare(1);
  EXPECT_EQ(zero_.Of(1), nullptr);
  Form(first);
  EXPECT_NE(zero_.Of(1), nullptr);
  EXPECT_EQ(zero_.Of(2), nullptr);
  const Group second = Prepare(2);
  EXPECT_EQ(zero_.Of(1), nullptr);
  EXPECT_EQ(ReasonOf(zero_.Form(first)), "RANK_LOST") << "it is over";
  EXPECT_EQ(zero_.Of(2), nullptr);
  Form(second);
  EXPECT_NE(zero_.Of(2), nullptr);
  zero_.Dissolve(Rank(1), absl::UnavailableError("gone"));
  EXPECT_EQ(zero_.Of(2), nullptr);
  EXPECT_EQ(ReasonOf(zero_.Form(second)), "RANK_LOST");
}

TEST_F(GroupCarriersTest, WhatHasComeInEarlierGenerationsCountsOn) {
  for (const uint32_t generation : {1, 2}) {
    const Group group = Prepare(generation);
    Form(group);
    absl::Notification came;
    const auto on_failed = [](Rank, const absl::Status& why) { ADD_FAILURE() << why; };
    const auto on_message = [&](Rank, StreamName, std::string_view, int64_t, Receipt) -> absl::StatusOr<Landing> {
      return Landing{.on_ended = [&](const absl::Status&) { came.Notify(); }};
    };
    const EdgeCredits credits = {.send = {.messages = 1, .bytes = 1}, .receive = {.messages = 1, .bytes = 1}};
    const auto to = one_.Of(generation)->OpenChannel(kChannel, {{Rank(0), credits}}, {on_message, on_failed});
    const auto from = zero_.Of(generation)->OpenChannel(kChannel, {{Rank(1), credits}}, {on_message, on_failed});
    ASSERT_TRUE(from->Send(Rank(1), {}, "x", {}, /*patience_nanos=*/1, "a message").ok());
    came.WaitForNotification();
    EXPECT_EQ(one_.received().from.at(Rank(0)).messages, generation);
  }
  one_.Dissolve(Rank(1), absl::CancelledError("closed"));
  EXPECT_EQ(one_.received().from.at(Rank(0)).messages, 2);
  EXPECT_EQ(one_.identity(), Generation(2));
}

}  // namespace
}  // namespace penstock
