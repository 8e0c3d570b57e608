#include "server/ranks/group_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/thread.h"
#include "engine/transport/measure_link.h"
#include "tests/support/asleep.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Links whose latency says who has measured them.
std::vector<Link> LinksOf(Rank rank, const std::vector<Rank>& peers) {
  std::vector<Link> links;
  for (const Rank peer : peers) {
    links.push_back({.one = rank,
                     .other = peer,
                     .measured = true,
                     .latency_seconds = 10.0 * rank.value() + peer.value(),
                     .bytes_per_second = 1});
  }
  return links;
}

std::vector<double> Latencies(const std::vector<Link>& links) {
  std::vector<double> latencies;
  for (const Link& link : links) latencies.push_back(link.latency_seconds);
  return latencies;
}

TEST(GroupLinks, EachPairIsMeasuredOnceInAGeneration) {
  GroupLinks links;
  EXPECT_THAT(links.known(), IsEmpty());
  std::vector<Rank> asked;
  const auto measure = [&](Rank rank, const std::vector<Rank>& peers, int64_t budget_nanos) {
    EXPECT_EQ(budget_nanos, kLinkBudgetNanos);
    asked.push_back(rank);
    return LinksOf(rank, peers);
  };
  EXPECT_THAT(Latencies(links.Of(1, 4, measure)), ElementsAre(1, 2, 3, 12, 13, 23));
  EXPECT_THAT(asked, ElementsAre(Rank(0), Rank(1), Rank(2)));
  EXPECT_EQ(links.Of(1, 4, measure).size(), 6u);
  EXPECT_EQ(links.known().size(), 6u);
  EXPECT_EQ(asked.size(), 3u);
  links.Of(2, 4, measure);
  EXPECT_EQ(asked.size(), 6u);
  EXPECT_THAT(links.Of(2, 1, measure), ::testing::SizeIs(6));  // nobody asks twice
}

TEST(GroupLinks, ManyRanksShareTheTime) {
  GroupLinks links;
  const auto measure = [](Rank rank, const std::vector<Rank>& peers, int64_t budget_nanos) {
    EXPECT_EQ(budget_nanos, GroupLinks::kGroupBudgetNanos / 120);
    return LinksOf(rank, peers);
  };
  EXPECT_EQ(links.Of(1, 16, measure).size(), 120u);
}

TEST(GroupLinks, WhatARankDoesNotTellIsListedAsUnknown) {
  GroupLinks links;
  const auto measure = [](Rank rank, std::vector<Rank> peers, int64_t) {
    if (rank == Rank(1)) return std::vector<Link>();
    peers.pop_back();
    std::vector<Link> told = LinksOf(rank, peers);
    told.push_back({.one = Rank(7), .other = Rank(9), .measured = true});  // what nobody asked for
    return told;
  };
  const std::vector<Link> known = links.Of(1, 3, measure);
  ASSERT_EQ(known.size(), 3u);
  EXPECT_TRUE(known[0].measured);
  EXPECT_FALSE(known[1].measured);
  EXPECT_EQ(known[1].problem, "rank 0 has not told it in time");
  EXPECT_EQ(known[2].one, Rank(1));
  EXPECT_EQ(known[2].other, Rank(2));
  EXPECT_EQ(known[2].problem, "rank 1 has not told it in time");
}

// A rank may have been busy: what it did not tell is asked for again, and nothing else.
TEST(GroupLinks, WhatIsUnknownIsMeasuredWhenSomebodyAsksAgain) {
  GroupLinks links;
  std::vector<std::pair<int, std::vector<Rank>>> asked;
  bool busy = true;
  const auto measure = [&](Rank rank, const std::vector<Rank>& peers, int64_t) {
    asked.emplace_back(rank.value(), peers);
    return busy && rank == Rank(1) ? std::vector<Link>() : LinksOf(rank, peers);
  };
  links.Of(1, 3, measure);
  asked.clear();
  busy = false;
  EXPECT_THAT(Latencies(links.Of(1, 3, measure)), ElementsAre(1, 2, 12));
  EXPECT_THAT(asked, ElementsAre(std::pair(1, std::vector{Rank(2)})));
  links.Of(1, 3, measure);
  EXPECT_EQ(asked.size(), 1u);
}

// Who asks may have seen the group before it formed again.
TEST(GroupLinks, ThoseOfAnEarlierGenerationTakeNobodysPlace) {
  GroupLinks links;
  int asked = 0;
  const auto measure = [&](Rank rank, const std::vector<Rank>& peers, int64_t) {
    ++asked;
    return LinksOf(rank, peers);
  };
  links.Of(2, 3, measure);
  asked = 0;
  EXPECT_THAT(Latencies(links.Of(1, 2, measure)), ElementsAre(1));
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(Latencies(links.known()), ElementsAre(1, 2, 12));
  EXPECT_THAT(Latencies(links.Of(2, 3, measure)), ElementsAre(1, 2, 12));
  EXPECT_EQ(asked, 1);
}

TEST(GroupLinks, WhoAsksMeanwhileWaitsForTheOneMeasurement) {
  GroupLinks links;
  absl::Notification measuring;
  absl::Notification go_on;
  int measured = 0;
  std::vector<Link> second;
  {
    Thread first("first", [&] {
      links.Of(1, 2, [&](Rank rank, const std::vector<Rank>& peers, int64_t) {
        measuring.Notify();
        go_on.WaitForNotification();
        ++measured;
        return LinksOf(rank, peers);
      });
    });
    measuring.WaitForNotification();
    absl::Notification answered;
    testing::Watched asking;
    Thread other("other", [&] {
      asking.Begin();
      second = links.Of(1, 2, [&](Rank rank, const std::vector<Rank>& peers, int64_t) {
        ++measured;
        return LinksOf(rank, peers);
      });
      answered.Notify();
    });
    asking.AwaitSleep(answered);
    EXPECT_FALSE(answered.HasBeenNotified());
    go_on.Notify();
  }
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(second.size(), 1u);
}

TEST(GroupLinks, AMeasurementThatThrowsLeavesNobodyWaiting) {
  GroupLinks links;
  EXPECT_THROW(links.Of(1, 2,
                        [](Rank, const std::vector<Rank>&, int64_t) -> std::vector<Link> {
                          throw std::runtime_error("no memory");
                        }),
               std::runtime_error);
  const auto measure = [](Rank rank, const std::vector<Rank>& peers, int64_t) { return LinksOf(rank, peers); };
  EXPECT_EQ(links.Of(1, 2, measure).size(), 1u);
}

}  // namespace
}  // namespace penstock
