#include "engine/transport/peer_edges.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "tests/support/failing_new.h"

namespace penstock {
namespace {

const ChannelName kChannel = {"p", Epoch(1)};

// The test itself is the network.
class HandCarrier : public Carrier {
 public:
  std::string address() const override { return ""; }
  absl::Status Start(const std::map<Rank, std::string>&, Handlers its_handlers) override {
    handlers = std::move(its_handlers);
    return absl::OkStatus();
  }
  void Send(Rank, Frame frame) override {
    if (missing > 0) {
      --missing;
      throw std::bad_alloc();
    }
    const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(frame.header);
    if (!header.ok()) return;
    ++sent[header->kind];
    if (header->kind == FrameKind::kTaken) taken += header->messages;
  }
  void Disconnect(Rank, const absl::Status& why) override {
    ++given_up;
    if (missing > 0) throw std::bad_alloc();
    handlers.on_lost(Rank(1), why);
  }
  void Close() override { closed = true; }

  // The peer has taken a message.
  void Take() {
    const std::string header = EncodeFrameHeader(
        {.from = Rank(1), .to = Rank(0), .kind = FrameKind::kTaken, .channel = kChannel, .messages = 1});
    testing::FailNewOnce(spared);
    EXPECT_TRUE(handlers.on_header(header, 0).ok());
    failed = testing::StopFailingNew();
  }

  // A message from rank 1 comes, lands and is taken.
  void Arrive() {
    const std::string header = EncodeFrameHeader({.from = Rank(1), .to = Rank(0), .channel = kChannel});
    testing::FailNewOnce(spared);
    {
      const absl::StatusOr<Landing> landing = handlers.on_header(header, 0);
      if (landing.ok()) landing->on_ended(absl::OkStatus());
    }
    failed = testing::StopFailingNew();
  }

  Handlers handlers;
  int64_t taken = 0;  // as the peer is told
  std::map<FrameKind, int> sent;
  int missing = 0;  // frames for which there is no memory
  int given_up = 0;
  bool closed = false;
  int spared = 0;  // allocations until one fails
  bool failed = false;
};

TEST(PeerEdges, CreditComesBackWhateverThereIsNoMemoryFor) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    auto made = std::make_unique<HandCarrier>();
    HandCarrier& carrier = *made;
    PeerEdges edges({.self = Rank(0)}, std::move(made));
    ASSERT_TRUE(edges.Start({{Rank(1), ""}}).ok());
    int arrived = 0;
    int refused = 0;
    const auto channel = edges.OpenChannel(
        kChannel, {{Rank(1), {.receive = {.messages = 1, .bytes = 0}}}},
        {.on_message = [&](Rank, StreamName, std::string_view, int64_t, Receipt receipt) -> absl::StatusOr<Landing> {
           return Landing{.on_ended = [&arrived, receipt = std::move(receipt)](const absl::Status&) { ++arrived; }};
         },
         .on_failed = [&](Rank, const absl::Status&) { ++refused; }});
    carrier.spared = spared;
    carrier.Arrive();
    failed = carrier.failed;
    EXPECT_EQ(arrived + refused, 1);
    carrier.spared = 1'000'000;
    carrier.Arrive();
    EXPECT_EQ(arrived + refused, 2);
    EXPECT_EQ(carrier.taken, 2);
  }
}

// An edge over which two messages were sent, the second of which waits for credit.
struct Edge {
  explicit Edge(HandCarrier* hand)
      : carrier(hand),
        edges({.self = Rank(0), .on_lost = [this](Rank, const absl::Status&) { ++lost; }},
              std::unique_ptr<HandCarrier>(hand)) {
    EXPECT_TRUE(edges.Start({{Rank(1), ""}}).ok());
    channel = edges.OpenChannel(kChannel, {{Rank(1), {.send = {.messages = 1, .bytes = 0}}}},
                                {.on_message = nullptr, .on_failed = [this](Rank, const absl::Status&) { ++failed; }});
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(channel->Send(Rank(1), {}, "", {}, 0, "a message").ok());
    EXPECT_EQ(carrier->sent[FrameKind::kMessage], 1);
  }

  HandCarrier* const carrier;
  PeerEdges edges;
  std::unique_ptr<PeerChannel> channel;
  int failed = 0;
  int lost = 0;
};

TEST(PeerEdges, AMessageThatCannotBeSentOnceThereIsCreditCostsTheEdge) {
  Edge edge(new HandCarrier);
  edge.carrier->spared = 1'000'000;
  edge.carrier->missing = 1;
  edge.carrier->Take();
  EXPECT_EQ(edge.carrier->given_up, 1);
  EXPECT_EQ(edge.failed, 1);
  EXPECT_FALSE(edge.edges.StatusOf(Rank(1)).ok());
}

TEST(PeerEdges, AnEdgeThatCannotEvenBeGivenUpFailsHere) {
  Edge edge(new HandCarrier);
  edge.carrier->spared = 1'000'000;
  edge.carrier->missing = 2;
  edge.carrier->Take();
  EXPECT_EQ(edge.carrier->given_up, 1);
  EXPECT_EQ(edge.failed, 1);
}

TEST(PeerEdges, CreditLetsMessagesGoWhateverThereIsNoMemoryFor) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    Edge edge(new HandCarrier);
    edge.carrier->spared = spared;
    edge.carrier->Take();
    failed = edge.carrier->failed;
    EXPECT_EQ(edge.carrier->sent[FrameKind::kMessage] + edge.failed, 2);
  }
}

TEST(PeerEdges, ARefusalIsToldToBothSidesWhateverThereIsNoMemoryFor) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const absl::Status why = absl::InvalidArgumentError("it is not what it must be, whatever that is");
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    Edge edge(new HandCarrier);
    testing::FailNewOnce(spared);
    edge.channel->Refuse(Rank(1), why);
    failed = testing::StopFailingNew();
    EXPECT_GE(edge.failed, 1);
    EXPECT_EQ(edge.carrier->sent[FrameKind::kRefused] + edge.carrier->given_up, 1);
  }
}

TEST(PeerEdges, APeersRefusalIsToldWhateverThereIsNoMemoryFor) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const std::string header =
      EncodeFrameHeader({.from = Rank(1),
                         .to = Rank(0),
                         .kind = FrameKind::kRefused,
                         .channel = kChannel,
                         .content = EncodeError(absl::InvalidArgumentError("it is not what it must be"))});
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    Edge edge(new HandCarrier);
    testing::FailNewOnce(spared);
    edge.carrier->handlers.on_header(header, 0).IgnoreError();
    failed = testing::StopFailingNew();
    EXPECT_EQ(edge.failed, 1);
  }
}

TEST(PeerEdges, ALossIsToldWhateverThereIsNoMemoryFor) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const absl::Status why = absl::UnavailableError("its edge has failed");
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    Edge edge(new HandCarrier);
    absl::Status echo;
    edge.edges.Probe(Rank(1), {}, [&](const absl::Status& how) { echo = how; });
    testing::FailNewOnce(spared);
    edge.carrier->handlers.on_lost(Rank(1), why);
    failed = testing::StopFailingNew();
    EXPECT_EQ(edge.failed, 1);
    EXPECT_EQ(edge.lost, 1);
    EXPECT_EQ(ReasonOf(edge.edges.StatusOf(Rank(1))), "RANK_LOST");
    EXPECT_EQ(ReasonOf(echo), "RANK_LOST");
  }
}

// A carrier that others can look at when its edges have gone.
class LentCarrier : public Carrier {
 public:
  explicit LentCarrier(HandCarrier* carrier) : carrier_(carrier) {}
  std::string address() const override { return ""; }
  absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) override {
    return carrier_->Start(peers, std::move(handlers));
  }
  void Send(Rank to, Frame frame) override { carrier_->Send(to, std::move(frame)); }
  void Disconnect(Rank peer, const absl::Status& why) override { carrier_->Disconnect(peer, why); }
  void Close() override { carrier_->Close(); }

 private:
  HandCarrier* const carrier_;
};

TEST(PeerEdges, EndWithoutMemory) {
  HandCarrier carrier;
  bool failed = false;
  {
    PeerEdges edges({.self = Rank(0)}, std::make_unique<LentCarrier>(&carrier));
    ASSERT_TRUE(edges.Start({{Rank(1), ""}, {Rank(2), ""}, {Rank(3), ""}}).ok());
    carrier.missing = 1;
    if (testing::kCanFailNew) testing::FailNewOnce(0);
    edges.Close();
    failed = testing::StopFailingNew();
  }
  EXPECT_TRUE(carrier.closed);
  EXPECT_EQ(failed, testing::kCanFailNew);
  EXPECT_GE(carrier.sent[FrameKind::kGoodbye], 1) << "the others hear it";
}

}  // namespace
}  // namespace penstock
