// The leader asks a rank for its links, in messages.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/transport/measure_link.h"
#include "server/ranks/rank_conversation.h"
#include "server/ranks/rank_pipelines.h"
#include "tests/support/fake_carrier.h"
#include "tests/support/quiet_line.h"

namespace penstock {
namespace {

constexpr uint32_t kGeneration = 3;

// Rank 1 of a group of three, of which nobody has told rank 2 anything.
class OneRank {
 public:
  OneRank() {
    std::map<Rank, std::string> addresses;
    for (int rank = 0; rank < 3; ++rank) {
      edges_.push_back(std::make_shared<PeerEdges>(PeerEdges::Options{.self = Rank(rank)}, network_.Make(Rank(rank))));
      addresses[Rank(rank)] = edges_.back()->address();
    }
    for (int rank = 0; rank < 2; ++rank) {
      std::map<Rank, std::string> peers = addresses;
      peers.erase(Rank(rank));
      EXPECT_TRUE(edges_[rank]->Start(peers).ok());
    }
  }
  ~OneRank() {
    conversation_->Close();
    pipelines_.Close();
    for (auto& edges : edges_) edges->Close();
  }

  PeerEdges& edges(int rank) { return *edges_.at(rank); }

  absl::StatusOr<std::vector<Link>> Ask(uint32_t generation, const std::vector<int>& peers, int64_t budget_nanos) {
    OutgoingCommand command;
    peer::v1::MeasureLinks& message = *command.message().mutable_measure_links();
    message.set_generation(generation);
    for (const int peer : peers) message.add_peers(peer);
    message.set_budget_nanos(budget_nanos);
    absl::StatusOr<std::vector<Link>> links;
    absl::Notification told;
    conversation_->Ask(std::move(command), [&](const absl::StatusOr<RankConversation::Arrived*>& arrived) {
      links = arrived.ok() ? FromProto(Rank(1), (*arrived)->report.links())
                           : absl::StatusOr<std::vector<Link>>(arrived.status());
      told.Notify();
    });
    told.WaitForNotification();
    return links;
  }

 private:
  class Line : public testing::QuietLine {
   public:
    explicit Line(OneRank* rank) : rank_(rank) {}
    void Tell(std::vector<MessagePart> parts) override {
      for (const MessagePart& part : parts) EXPECT_TRUE(rank_->pipelines_.OnTold(part).ok());
    }

   private:
    OneRank* const rank_;
  };

  void TellLeader(const std::vector<MessagePart>& parts) {
    for (const MessagePart& part : parts) {
      auto whole = reader_.Take(part);
      ASSERT_TRUE(whole.ok()) << whole.status();
      if (!whole->has_value()) continue;
      EXPECT_TRUE(conversation_->OnReport((*whole)->message, std::move((*whole)->tensors)).ok());
    }
  }

  testing::FakeCarrier::Network network_;
  std::vector<std::shared_ptr<PeerEdges>> edges_;
  MessageReader<peer::v1::Report> reader_;
  const std::shared_ptr<RankConversation> conversation_ =
      std::make_shared<RankConversation>(Rank(1), 5, std::make_shared<Line>(this), nullptr);
  RankPipelines pipelines_{{.self = Rank(1),
                            .edges = [this](uint32_t generation) -> std::shared_ptr<PeerEdges> {
                              return generation == kGeneration ? edges_[1] : nullptr;
                            },
                            .tell = [this](std::vector<MessagePart> parts) { TellLeader(parts); }}};
};

TEST(RankLinks, ARankTellsWhatItMeasures) {
  OneRank rank;
  const auto links = rank.Ask(kGeneration, {0}, kLinkBudgetNanos);
  ASSERT_TRUE(links.ok()) << links.status();
  ASSERT_EQ(links->size(), 1u);
  EXPECT_EQ((*links)[0].one, Rank(0));
  EXPECT_EQ((*links)[0].other, Rank(1));
  // On a machine that gives it no time it may not be, and says so.
  EXPECT_NE((*links)[0].measured, (*links)[0].bytes_per_second == 0);
}

// Rank 2 has not connected its carrier: what comes there is dropped.
TEST(RankLinks, APeerThatNeverAnswersIsTold) {
  OneRank rank;
  const auto links = rank.Ask(kGeneration, {2, 7}, /*budget_nanos=*/1'000'000);
  ASSERT_TRUE(links.ok()) << links.status();
  ASSERT_EQ(links->size(), 2u);
  EXPECT_FALSE((*links)[0].measured);
  EXPECT_EQ((*links)[0].problem, "no echo from rank 2 in time");
  EXPECT_EQ((*links)[1].problem, "rank 7 is not in this group");
}

TEST(RankLinks, ThoseOfAnotherGenerationAreRefused) {
  OneRank rank;
  const absl::Status over = rank.Ask(kGeneration + 1, {0}, kLinkBudgetNanos).status();
  EXPECT_EQ(ReasonOf(over), "RANK_LOST");
  EXPECT_EQ(ValuesOf(over)["rank"], "1");
}

}  // namespace
}  // namespace penstock
