#include "engine/transport/peer_edges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "tests/support/asleep.h"
#include "tests/support/failing_new.h"
#include "tests/support/fake_clock.h"

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

// Writes down what leaves: of messages the content, of refusals the field that they name.
class NotingCarrier : public HandCarrier {
 public:
  void Send(Rank, Frame frame) override {
    const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(frame.header);
    ASSERT_TRUE(header.ok()) << header.status();
    if (header->kind == FrameKind::kMessage) sent.emplace_back(header->content);
    if (header->kind == FrameKind::kRefused) refused.push_back(ValuesOf(DecodeError(header->content))["field"]);
  }
  void Comes(FrameHeader header, int64_t payload_bytes = 0) {
    header.from = Rank(1);
    header.channel = kChannel;
    absl::StatusOr<Landing> landing = handlers.on_header(EncodeFrameHeader(header), payload_bytes);
    if (landing.ok() && landing->on_ended) landing->on_ended(absl::OkStatus());
  }
  void Take(int64_t messages, int64_t bytes, int64_t run = 1) {
    Comes({.to = Rank(0),
           .kind = FrameKind::kTaken,
           .stream = {.run = run},
           .payload_bytes = bytes,
           .messages = messages});
  }

  std::vector<std::string> sent;
  std::vector<std::string> refused;
};

// Rank 0, which has a channel with rank 1 whose streams may have two messages under way, and 16 bytes.
class PeerEdgesTest : public ::testing::Test {
 protected:
  using Strings = std::vector<std::string>;
  static constexpr EdgeCredit kCredit = {.messages = 2, .bytes = 16};
  static constexpr int64_t kPatience = 10'000'000'000;

  PeerEdgesTest() { EXPECT_TRUE(edges_.Start({{Rank(1), ""}, {Rank(2), ""}}).ok()); }

  std::unique_ptr<PeerChannel> Open() {
    return edges_.OpenChannel(
        kChannel, {{Rank(1), {.send = kCredit, .receive = kCredit}}},
        {.on_message = [this](Rank, StreamName, std::string_view, int64_t, Receipt receipt) -> absl::StatusOr<Landing> {
           receipts_.push_back(std::move(receipt));
           on_message_();
           return Landing{.on_ended = [](const absl::Status&) {}};
         },
         .on_failed = [this](Rank, const absl::Status& why) { failed_.push_back(std::string(why.message())); }});
  }
  // Of eight bytes.
  absl::Status Send(PeerChannel& channel, const std::string& content, int64_t run = 1) {
    static char bytes[8];
    const Piece piece = {.data = bytes, .bytes = 8, .owner = owner_};
    return channel.Send(Rank(1), {.run = run}, content, {piece}, kPatience, "a message");
  }

  testing::FakeClock clock_;
  std::unique_ptr<NotingCarrier> made_ = std::make_unique<NotingCarrier>();
  NotingCarrier* const carrier_ = made_.get();
  PeerEdges edges_{{.self = Rank(0), .clock = &clock_}, std::move(made_)};
  std::shared_ptr<const void> owner_ = std::make_shared<int>();
  std::vector<Receipt> receipts_;
  std::function<void()> on_message_ = [] {};
  Strings failed_;
};

TEST_F(PeerEdgesTest, WhatIsTakenGivesAllItsCreditBack) {
  const auto channel = Open();
  for (const char* content : {"a", "b", "c", "d"}) ASSERT_TRUE(Send(*channel, content).ok());
  EXPECT_EQ(carrier_->sent, (Strings{"a", "b"}));
  carrier_->Take(1, 8);
  EXPECT_EQ(carrier_->sent, (Strings{"a", "b", "c"}));
  carrier_->Take(1, 8);
  EXPECT_EQ(carrier_->sent, (Strings{"a", "b", "c", "d"}));
}

TEST_F(PeerEdgesTest, AStreamStallsWhenNothingOfItIsTakenForThePatience) {
  const auto channel = Open();
  for (const char* content : {"a", "b", "c", "d", "e"}) ASSERT_TRUE(Send(*channel, content).ok());
  clock_.AdvanceNanos(kPatience - 1);
  carrier_->Take(1, 8);
  clock_.AdvanceNanos(kPatience);
  EXPECT_TRUE(Send(*channel, "f").ok());
  clock_.AdvanceNanos(1);
  const absl::Status stalled = Send(*channel, "g");
  EXPECT_EQ(ReasonOf(stalled), "EDGE_STALLED");
  EXPECT_EQ(ValuesOf(stalled)["rank"], "1");
}

TEST_F(PeerEdgesTest, TheEndOfARunLeavesWhatWaitsOfOthers) {
  const auto channel = Open();
  for (const int64_t run : {1, 2, 3}) {
    for (const char* content : {"a", "b", "c"}) ASSERT_TRUE(Send(*channel, absl::StrCat(content, run), run).ok());
  }
  channel->DropRun(2);
  carrier_->sent.clear();
  for (const int64_t run : {1, 2, 3}) carrier_->Take(1, 8, run);
  EXPECT_EQ(carrier_->sent, (Strings{"c1", "c3"}));
  EXPECT_TRUE(failed_.empty());
}

TEST_F(PeerEdgesTest, APeerCanNotTakeWhatWasNotSent) {
  const auto channel = Open();
  ASSERT_TRUE(Send(*channel, "a").ok());
  carrier_->Take(2, 8);
  carrier_->Take(1, 9);
  EXPECT_EQ(carrier_->refused, (Strings{"messages", "messages"}));
  EXPECT_THAT(failed_, ::testing::ElementsAre(
                           "rank 0 refused a message of rank 1: messages: must be no more than were sent, got 2",
                           "rank 0 refused a message of rank 1: messages: must be no more than were sent, got 1"));
  carrier_->Take(1, 8);
  EXPECT_EQ(failed_.size(), 2u);
}

TEST_F(PeerEdgesTest, AMessageBeyondTheCreditIsRefused) {
  const auto channel = Open();
  const auto message = [&](int64_t bytes) {
    carrier_->Comes({.to = Rank(0), .stream = {.run = 1}, .payload_bytes = bytes}, bytes);
  };
  for (const int64_t bytes : {0, 17, 0, 0}) message(bytes);  // two come in
  EXPECT_EQ(receipts_.size(), 2u);
  EXPECT_THAT(failed_, ::testing::ElementsAre("rank 0 refused a message of rank 1: payload_bytes: must be within the "
                                              "credit of the edge, got 17",
                                              "rank 0 refused a message of rank 1: payload_bytes: must be within the "
                                              "credit of the edge, got 0"));
  EXPECT_EQ(carrier_->refused, (Strings{"payload_bytes", "payload_bytes"}));
  receipts_.clear();
  message(0);
  EXPECT_EQ(receipts_.size(), 1u);
}

TEST_F(PeerEdgesTest, FramesForOthersAndWordsWithAPayloadAreMalformed) {
  const auto channel = Open();
  carrier_->Comes({.to = Rank(2), .stream = {.run = 1}});
  carrier_->Comes({.to = Rank(0), .kind = FrameKind::kGoodbye}, /*payload_bytes=*/1);
  carrier_->Comes({.to = Rank(0), .kind = FrameKind::kTaken}, /*payload_bytes=*/1);
  EXPECT_EQ(edges_.counts().malformed, 3);
  EXPECT_TRUE(receipts_.empty());
  EXPECT_TRUE(edges_.StatusOf(Rank(1)).ok());
}

TEST_F(PeerEdgesTest, WhatWaitsForALostPeerGoes) {
  const auto channel = Open();
  for (const char* content : {"a", "b", "c"}) ASSERT_TRUE(Send(*channel, content).ok());
  EXPECT_EQ(owner_.use_count(), 2) << "one waits";
  carrier_->handlers.on_lost(Rank(1), absl::UnavailableError("gone"));
  EXPECT_EQ(owner_.use_count(), 1);
  EXPECT_THAT(failed_, ::testing::ElementsAre("rank 1 is lost: gone"));
}

TEST_F(PeerEdgesTest, AChannelThatOpensLaterKnowsWhoIsLost) {
  carrier_->handlers.on_lost(Rank(1), absl::UnavailableError("gone"));
  const auto channel = Open();
  const absl::Status lost = Send(*channel, "a");
  EXPECT_EQ(ReasonOf(lost), "RANK_LOST");
  EXPECT_EQ(lost.message(), "rank 1 is lost: gone");
  EXPECT_TRUE(carrier_->sent.empty());
}

TEST_F(PeerEdgesTest, CloseWaitsForTheHandlerOfAMessage) {
  const auto channel = Open();
  absl::Notification handles;
  absl::Notification go_on;
  on_message_ = [&] {
    handles.Notify();
    go_on.WaitForNotification();
  };
  const Thread comes("comes", [&] { carrier_->Comes({.to = Rank(0), .stream = {.run = 1}}); });
  handles.WaitForNotification();
  absl::Notification closed;
  testing::Watched closing;
  const Thread closes("closes", [&] {
    closing.Begin();
    channel->Close();
    closed.Notify();
  });
  closing.AwaitSleep(closed);
  EXPECT_FALSE(closed.HasBeenNotified());
  go_on.Notify();
  closed.WaitForNotification();
}

}  // namespace
}  // namespace penstock
