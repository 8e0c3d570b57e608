#pragma once

// What the transport of a group promises beside TransportContract, over any carrier:
//   INSTANTIATE_TYPED_TEST_SUITE_P(Fake, GroupTransportContract, FakeCarrierFactory);
//   INSTANTIATE_TYPED_TEST_SUITE_P(Fake, TransportContract, TwoRanksFactory<FakeCarrierFactory>);

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error.h"
#include "engine/transport/group_transport.h"

namespace penstock::testing {

inline constexpr int64_t kMinuteNanos = int64_t{60} * 1'000'000'000;

// One rank: its edges, and one transport on them. Even stages are rank 0's, odd ones rank 1's.
class RankOfTest {
 public:
  struct Options {
    int stages = 4;
    EdgeCredit credit = {.messages = 1000, .bytes = int64_t{1} << 30};
    int64_t send_timeout_nanos = kMinuteNanos;
    GroupIdentity group = {};
    std::vector<TensorForm> expected = {};  // of every message; empty: any
    int throws_at = -1;                     // the arrival of this micro-batch
    int64_t most_bytes = int64_t{1} << 30;  // of a payload
  };

  RankOfTest(Rank self, std::unique_ptr<Carrier> carrier, const Options& options)
      : self_(self),
        options_(options),
        edges({.group = options.group, .self = self, .most_bytes = options.most_bytes}, std::move(carrier)) {}
  ~RankOfTest() {
    transport.reset();
    edges.Close();
  }

  void Start(const std::string& address_of_other) {
    const Rank other(1 - self_.value());
    ASSERT_TRUE(edges.Start({{other, address_of_other}}).ok());
    GroupTransport::Options options{.self = self_,
                                    .channel = {"pipeline", Epoch(1)},
                                    .credits = {{other, {.send = options_.credit, .receive = options_.credit}}},
                                    .send_timeout_nanos = options_.send_timeout_nanos};
    for (int stage = 0; stage < options_.stages; ++stage) {
      options.rank_of_stage.emplace_back(stage % 2);
      options.streams.push_back(stage % 2 == self_.value() ? &CpuStreams() : nullptr);
    }
    options.expected = [this](const MessageKey&) { return options_.expected.empty() ? nullptr : &options_.expected; };
    options.on_arrival = [this](const MessageKey& key) {
      if (key.micro_batch == options_.throws_at) throw std::bad_alloc();
      absl::MutexLock lock(&mu);
      ++arrivals;
    };
    options.on_failed = [this](Rank, const absl::Status& why) {
      absl::MutexLock lock(&mu);
      failures.push_back(why);
    };
    transport = std::make_unique<GroupTransport>(&edges, std::move(options));
  }

  // A message that is on its way; none if it does not come within a minute.
  std::optional<ValuesInFlight> Receive(const MessageKey& key) {
    while (true) {
      int seen = 0;
      {
        absl::MutexLock lock(&mu);
        seen = arrivals;
      }
      std::optional<ValuesInFlight> message = transport->TryReceive(key);
      if (message.has_value() || !AwaitArrivals(seen + 1)) return message;
    }
  }
  bool AwaitArrivals(int count) {
    const auto there = [&] {
      mu.AssertReaderHeld();
      return arrivals >= count;
    };
    absl::MutexLock lock(&mu);
    return mu.AwaitWithTimeout(absl::Condition(&there), absl::Minutes(1));
  }
  // The first thing that failed; OK if nothing does within a minute.
  absl::Status AwaitFailure() {
    const auto there = [&] {
      mu.AssertReaderHeld();
      return !failures.empty();
    };
    absl::MutexLock lock(&mu);
    mu.AwaitWithTimeout(absl::Condition(&there), absl::Minutes(1));
    return failures.empty() ? absl::OkStatus() : failures.front();
  }

 private:
  const Rank self_;
  const Options options_;

 public:
  PeerEdges edges;
  std::unique_ptr<GroupTransport> transport;
  absl::Mutex mu;
  int arrivals ABSL_GUARDED_BY(mu) = 0;
  std::vector<absl::Status> failures ABSL_GUARDED_BY(mu);
};

// Two ranks as one transport: each message is given to its sender's rank and taken from its receiver's.
template <typename CarrierFactory>
class TwoRanks : public Transport {
 public:
  explicit TwoRanks(const RankOfTest::Options& options = {}, const RankOfTest::Options* other = nullptr) {
    for (int rank = 0; rank < 2; ++rank) {
      ranks[rank] = std::make_unique<RankOfTest>(Rank(rank), factory_.Make(Rank(rank)),
                                                 rank == 1 && other != nullptr ? *other : options);
    }
    ranks[0]->Start(ranks[1]->edges.address());
    ranks[1]->Start(ranks[0]->edges.address());
  }
  ~TwoRanks() override {
    for (auto& rank : ranks) rank->transport.reset();
    for (auto& rank : ranks) rank->edges.Close();
  }

  void Open(int64_t run) override {
    for (auto& rank : ranks) rank->transport->Open(run);
  }
  absl::Status Send(const MessageKey& key, Batch values) override {
    return ranks[(SenderOf(key) + 2) % 2]->transport->Send(key, std::move(values));
  }
  std::optional<ValuesInFlight> TryReceive(const MessageKey& key) override {
    return ranks[key.stage % 2]->transport->TryReceive(key);
  }
  void Close(int64_t run) override {
    for (auto& rank : ranks) rank->transport->Close(run);
  }

 private:
  CarrierFactory factory_;

 public:
  std::unique_ptr<RankOfTest> ranks[2];
};

// Of TransportContract.
template <typename CarrierFactory>
struct TwoRanksFactory {
  using Ranks = TwoRanks<CarrierFactory>;
  std::unique_ptr<Ranks> Make(int) { return std::make_unique<Ranks>(); }
  std::optional<ValuesInFlight> Receive(Ranks& ranks, const MessageKey& key) {
    return ranks.ranks[key.stage % 2]->Receive(key);
  }
};

template <typename CarrierFactory>
class GroupTransportContract : public ::testing::Test {
 protected:
  using Ranks = TwoRanks<CarrierFactory>;
  static MessageKey Key(int micro_batch, int64_t run = 1) {
    return {.run = run, .stage = 1, .micro_batch = micro_batch};
  }
  static Batch Value(double value) { return Batch(at::full({2}, value)); }
};

TYPED_TEST_SUITE_P(GroupTransportContract);

TYPED_TEST_P(GroupTransportContract, NestedValuesAndLargeTensorsArriveBitForBit) {
  typename TestFixture::Ranks ranks;
  ranks.Open(1);
  const at::Tensor large = at::zeros({1 << 20}, at::kBFloat16).normal_();
  const at::Tensor small = at::full({}, int64_t{7}, at::kLong);
  const MessageKey key{.run = 1, .kind = MessageKind::kGradient, .stage = 2, .micro_batch = 4, .peer = 3};
  ASSERT_TRUE(
      ranks.Send(key, Batch::Tuple({Value(), Value::Dict({{"large", Value(large)}}), WholeTensor{small}})).ok());
  const auto got = ranks.ranks[0]->Receive(key);
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(got->values[0].is_none());
  EXPECT_TRUE(at::equal(*got->values[1].dict()->at(0).second.tensor(), large));
  EXPECT_TRUE(at::equal(*got->values[2].whole(), small));
}

TYPED_TEST_P(GroupTransportContract, KeepsMessagesOfARunThatOnlyTheSenderHasBegun) {
  typename TestFixture::Ranks ranks;
  ranks.ranks[0]->transport->Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), this->Value(5)).ok());
  ASSERT_TRUE(ranks.ranks[1]->AwaitArrivals(1));
  ranks.ranks[1]->transport->Open(1);
  EXPECT_EQ(ranks.TryReceive(this->Key(0))->values.TensorAt(0)[0].template item<float>(), 5);
}

TYPED_TEST_P(GroupTransportContract, DropsEarlyMessagesOfARunThatIsAborted) {
  typename TestFixture::Ranks ranks;
  ranks.ranks[0]->transport->Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), this->Value(5)).ok());
  ASSERT_TRUE(ranks.ranks[1]->AwaitArrivals(1));
  ranks.ranks[1]->transport->Close(1);
  EXPECT_EQ(ranks.ranks[1]->transport->waiting(), 0);
}

TYPED_TEST_P(GroupTransportContract, LateMessagesAreDroppedAndCountedAndGiveCreditBack) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 1, .bytes = 1000}});
  ranks.Open(1);
  ranks.Open(2);
  ranks.ranks[1]->transport->Close(1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ranks.Send(this->Key(i), this->Value(i)).ok());
  ASSERT_TRUE(ranks.Send(this->Key(0, 2), this->Value(8)).ok());
  EXPECT_EQ(ranks.ranks[1]->Receive(this->Key(0, 2))->values.TensorAt(0)[0].template item<float>(), 8);
  while (ranks.ranks[1]->edges.counts().unwanted < 3) std::this_thread::yield();
  EXPECT_EQ(ranks.ranks[1]->edges.counts().received.at(Rank(0)).messages, 1);
}

// Messages of another stream, sent last, show that those before them have come or will not.
TYPED_TEST_P(GroupTransportContract, CreditBoundsWhatOneStreamMakesAReceiverHold) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 2, .bytes = 1000}});
  ranks.Open(1);
  ranks.Open(2);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(ranks.Send(this->Key(i), this->Value(i)).ok());
  ASSERT_TRUE(ranks.Send(this->Key(0, 2), Batch(at::zeros({1000}))).ok());  // one goes, whatever its size
  ASSERT_TRUE(ranks.Send(this->Key(1, 2), this->Value(1)).ok());
  MessageKey last = this->Key(0, 2);
  last.stage = 3;
  ASSERT_TRUE(ranks.Send(last, this->Value(0)).ok());
  ASSERT_TRUE(ranks.ranks[1]->Receive(last).has_value());
  EXPECT_EQ(ranks.ranks[1]->transport->waiting(), 3);
  ASSERT_TRUE(ranks.ranks[1]->Receive(this->Key(0, 2)).has_value());
  EXPECT_TRUE(ranks.ranks[1]->Receive(this->Key(1, 2)).has_value());
}

TYPED_TEST_P(GroupTransportContract, NobodyWaitsForCreditAndAllComesInItsOrder) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 1, .bytes = 1}});
  ranks.Open(1);
  constexpr int kMessages = 50;
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(ranks.Send(this->Key(i), this->Value(i)).ok());
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(ranks.ranks[1]->Receive(this->Key(i))->values.TensorAt(0)[0].template item<float>(), i);
  }
}

TYPED_TEST_P(GroupTransportContract, AStreamOfWhichNothingIsTakenStallsAtLast) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 1, .bytes = 1000}, .send_timeout_nanos = -1});
  ranks.Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), this->Value(0)).ok());
  ASSERT_TRUE(ranks.Send(this->Key(1), this->Value(1)).ok());
  const absl::Status stalled = ranks.Send(this->Key(2), this->Value(2));
  EXPECT_EQ(stalled.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(stalled), "EDGE_STALLED");
}

TYPED_TEST_P(GroupTransportContract, WhatWaitsOfARunThatHasEndedIsNotSent) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 1, .bytes = 1000}});
  ranks.Open(1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ranks.Send(this->Key(i), this->Value(i)).ok());
  ranks.ranks[0]->transport->Close(1);
  ASSERT_TRUE(ranks.Send(this->Key(3), this->Value(3)).ok());
  ASSERT_TRUE(ranks.ranks[1]->Receive(this->Key(0)).has_value());
  ranks.Open(2);
  ASSERT_TRUE(ranks.Send(this->Key(0, 2), this->Value(0)).ok());
  ASSERT_TRUE(ranks.ranks[1]->Receive(this->Key(0, 2)).has_value());
  EXPECT_EQ(ranks.ranks[1]->edges.counts().received.at(Rank(0)).messages, 2);
  absl::MutexLock lock(&ranks.ranks[1]->mu);
  EXPECT_TRUE(ranks.ranks[1]->failures.empty());
}

TYPED_TEST_P(GroupTransportContract, APeerMayBeginSoManyRunsAheadAndNoMore) {
  typename TestFixture::Ranks ranks;
  constexpr int kEarlyRuns = 1000;
  for (int run = 1; run <= kEarlyRuns + 1; ++run) {
    ranks.ranks[0]->transport->Open(run);
    ASSERT_TRUE(ranks.Send(this->Key(0, run), this->Value(0)).ok());
  }
  EXPECT_EQ(ValuesOf(ranks.ranks[1]->AwaitFailure())["field"], "key.run");
  EXPECT_EQ(ranks.ranks[1]->transport->waiting(), kEarlyRuns);
  ranks.ranks[1]->transport->Open(1);
  ranks.ranks[0]->transport->Open(kEarlyRuns + 2);
  ASSERT_TRUE(ranks.Send(this->Key(0, kEarlyRuns + 2), this->Value(0)).ok());
  EXPECT_TRUE(ranks.ranks[1]->Receive(this->Key(0, kEarlyRuns + 2)).has_value());
}

TYPED_TEST_P(GroupTransportContract, RunsThatEndBeforeTheyAreOpenHereCountNoMore) {
  typename TestFixture::Ranks ranks;
  constexpr int kEarlyRuns = 1000;
  for (int run = 1; run <= 2 * kEarlyRuns; ++run) {
    ranks.ranks[0]->transport->Open(run);
    ASSERT_TRUE(ranks.Send(this->Key(0, run), this->Value(0)).ok());
    if (run != kEarlyRuns) continue;
    ASSERT_TRUE(ranks.ranks[1]->AwaitArrivals(kEarlyRuns));
    for (int ended = 1; ended <= kEarlyRuns; ++ended) ranks.ranks[1]->transport->Close(ended);
  }
  ASSERT_TRUE(ranks.ranks[1]->AwaitArrivals(2 * kEarlyRuns));
  absl::MutexLock lock(&ranks.ranks[1]->mu);
  EXPECT_TRUE(ranks.ranks[1]->failures.empty());
}

TYPED_TEST_P(GroupTransportContract, AnUnplannedTensorIsAnErrorOnBothSidesAndNothingArrives) {
  RankOfTest::Options plan;
  plan.expected = {{at::kFloat, {2}}};
  typename TestFixture::Ranks ranks(RankOfTest::Options{}, &plan);
  ranks.Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), Batch(at::zeros({100000}))).ok());
  for (auto& rank : ranks.ranks) {
    const absl::Status failure = rank->AwaitFailure();
    EXPECT_EQ(ReasonOf(failure), "RANK_MESSAGE") << failure;
    EXPECT_EQ(ValuesOf(failure)["field"], "values[0]");
  }
  EXPECT_EQ(ranks.ranks[1]->transport->waiting(), 0);
  ASSERT_TRUE(ranks.Send(this->Key(1), this->Value(1)).ok());  // the edge stays
  EXPECT_TRUE(ranks.ranks[1]->Receive(this->Key(1)).has_value());
}

TYPED_TEST_P(GroupTransportContract, APayloadThatNoMemoryHoldsIsAnErrorOnBothSidesAndNothingArrives) {
  RankOfTest::Options small;
  small.most_bytes = 1000;
  typename TestFixture::Ranks ranks(RankOfTest::Options{}, &small);
  ranks.Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), Batch(at::zeros({1000}))).ok());
  for (auto& rank : ranks.ranks) {
    const absl::Status failure = rank->AwaitFailure();
    EXPECT_EQ(ReasonOf(failure), "RANK_MESSAGE") << failure;
    EXPECT_THAT(std::string(failure.message()),
                ::testing::HasSubstr("payload_bytes: must be at most 1000, this process's memory, got 4000"));
  }
  EXPECT_EQ(ranks.ranks[1]->transport->waiting(), 0);
  ASSERT_TRUE(ranks.Send(this->Key(1), this->Value(1)).ok());  // the edge stays
  EXPECT_TRUE(ranks.ranks[1]->Receive(this->Key(1)).has_value());
}

TYPED_TEST_P(GroupTransportContract, WhatIsThrownOnACarriersThreadEndsNothingButItsMessage) {
  RankOfTest::Options throws;
  throws.throws_at = 0;
  typename TestFixture::Ranks ranks(RankOfTest::Options{}, &throws);
  ranks.Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), Batch(at::zeros({100000}))).ok());
  EXPECT_EQ(ReasonOf(ranks.ranks[1]->AwaitFailure()), "HOST_MEMORY");
  ASSERT_TRUE(ranks.Send(this->Key(1), this->Value(1)).ok());
  EXPECT_TRUE(ranks.ranks[1]->Receive(this->Key(1)).has_value());
}

// A peer that writes its frames by hand; it sees what is refused.
TYPED_TEST_P(GroupTransportContract, ForeignFramesAreDroppedAndCountedAndLiesAreRefused) {
  TypeParam factory;
  RankOfTest rank(Rank(0), factory.Make(Rank(0)), {});
  const std::unique_ptr<Carrier> peer = factory.Make(Rank(1));
  absl::Mutex mu;
  std::vector<absl::Status> refusals;  // guarded by mu
  ASSERT_TRUE(peer->Start({{Rank(0), rank.edges.address()}},
                          {.on_header = [&](std::string_view bytes, int64_t) -> absl::StatusOr<Landing> {
                             const auto header = DecodeFrameHeader(bytes);
                             absl::MutexLock lock(&mu);
                             if (header.ok() && header->kind == FrameKind::kRefused) {
                               refusals.push_back(DecodeError(header->content));
                             }
                             return Landing{};
                           },
                           .on_lost = [](Rank, const absl::Status&) {}})
                  .ok());
  rank.Start(peer->address());
  rank.transport->Open(1);
  const MessageKey key{.run = 1, .kind = MessageKind::kGradient, .stage = 0};
  const auto message = EncodeTensorMessage(key, this->Value(3));
  const FrameHeader right{
      .from = Rank(1), .to = Rank(0), .channel = {"pipeline", Epoch(1)}, .stream = StreamOf(key), .payload_bytes = 8};
  const auto send = [&](FrameHeader header, std::string_view content) {
    header.content = content;
    peer->Send(Rank(0), {.header = EncodeFrameHeader(header), .payload = message->payload});
  };
  const auto send_as = [&](const MessageKey& other, const Batch& values) {
    FrameHeader header = right;
    header.stream = StreamOf(other);
    send(header, EncodeTensorMessage(other, values)->header);
  };
  FrameHeader header = right;
  header.group.key[3] = 1;
  send(header, message->header);
  header = right;
  header.group.generation = 1;
  send(header, message->header);
  header = right;
  header.group.epoch = Epoch(1);
  send(header, message->header);
  header = right;
  header.channel.epoch = Epoch(0);
  send(header, message->header);
  header = right;
  header.from = Rank(2);
  send(header, message->header);
  peer->Send(Rank(0), {.header = "noise"});
  header = right;
  header.payload_bytes = 9;  // and eight come
  send(header, message->header);
  header = right;
  header.content = message->header;
  peer->Send(Rank(0), {.header = EncodeFrameHeader(header)});  // and none come
  send(right, std::string_view(message->header).substr(0, 30));
  send_as({.run = 1, .kind = MessageKind::kGradient, .stage = 1}, this->Value(3));
  send_as({.run = 1, .stage = 2}, Batch(at::zeros({3})));
  send_as({.run = 1, .stage = 2, .peer = 0}, this->Value(3));
  header = right;
  ++header.stream.number;  // so that it would use another's credit
  send(header, message->header);
  send(right, message->header);
  ASSERT_TRUE(rank.AwaitArrivals(1));
  EXPECT_TRUE(rank.transport->TryReceive(key).has_value());
  const EdgeCounts counts = rank.edges.counts();
  EXPECT_EQ(counts.strangers, 1);
  EXPECT_EQ(counts.stale, 3);
  EXPECT_EQ(counts.malformed, 2);
  EXPECT_EQ(counts.received.at(Rank(1)).messages, 1);
  EXPECT_EQ(rank.transport->waiting(), 0);
  std::vector<absl::Status> own;
  {
    absl::MutexLock lock(&rank.mu);
    own = rank.failures;
  }
  std::vector<std::string> fields;
  for (const absl::Status& failure : own) fields.push_back(ValuesOf(failure)["field"]);
  EXPECT_EQ(fields, (std::vector<std::string>{"payload_bytes", "payload_bytes", fields.at(2), "key.stage", "values[0]",
                                              "key.peer", "stream"}));
  const auto told = [&] { return refusals.size() == own.size(); };
  absl::MutexLock lock(&mu);
  EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&told), absl::Minutes(1)));
  for (size_t i = 0; i < refusals.size(); ++i) EXPECT_EQ(ValuesOf(refusals[i])["field"], fields[i]);
}

TYPED_TEST_P(GroupTransportContract, ALostPeerIsToldOnceAndEndsLaterSends) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 1, .bytes = 1000}});
  ranks.Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), this->Value(0)).ok());
  ASSERT_TRUE(ranks.Send(this->Key(1), this->Value(1)).ok());  // waits
  ranks.ranks[0]->edges.Lose(Rank(1), absl::UnavailableError("its heart stopped"));
  const absl::Status failure = ranks.ranks[0]->AwaitFailure();
  EXPECT_EQ(failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(failure), "RANK_LOST");
  EXPECT_EQ(ValuesOf(failure)["rank"], "1");
  EXPECT_EQ(ReasonOf(ranks.Send(this->Key(2), this->Value(2))), "RANK_LOST");
  absl::MutexLock lock(&ranks.ranks[0]->mu);
  EXPECT_EQ(ranks.ranks[0]->failures.size(), 1);
}

TYPED_TEST_P(GroupTransportContract, APeerThatSaysGoodbyeIsNoFailure) {
  typename TestFixture::Ranks ranks({.credit = {.messages = 1, .bytes = 1000}});
  ranks.Open(1);
  ASSERT_TRUE(ranks.Send(this->Key(0), this->Value(0)).ok());
  ASSERT_TRUE(ranks.ranks[1]->AwaitArrivals(1));
  ranks.ranks[1]->transport.reset();
  ranks.ranks[1]->edges.Close();
  while (ranks.ranks[0]->edges.StatusOf(Rank(1)).ok()) std::this_thread::yield();
  EXPECT_EQ(ReasonOf(ranks.Send(this->Key(1), this->Value(1))), "RANK_LOST");
  absl::MutexLock lock(&ranks.ranks[0]->mu);
  EXPECT_TRUE(ranks.ranks[0]->failures.empty());
}

REGISTER_TYPED_TEST_SUITE_P(GroupTransportContract, NestedValuesAndLargeTensorsArriveBitForBit,
                            KeepsMessagesOfARunThatOnlyTheSenderHasBegun, DropsEarlyMessagesOfARunThatIsAborted,
                            LateMessagesAreDroppedAndCountedAndGiveCreditBack,
                            CreditBoundsWhatOneStreamMakesAReceiverHold, NobodyWaitsForCreditAndAllComesInItsOrder,
                            AStreamOfWhichNothingIsTakenStallsAtLast, WhatWaitsOfARunThatHasEndedIsNotSent,
                            APeerMayBeginSoManyRunsAheadAndNoMore, RunsThatEndBeforeTheyAreOpenHereCountNoMore,
                            AnUnplannedTensorIsAnErrorOnBothSidesAndNothingArrives,
                            APayloadThatNoMemoryHoldsIsAnErrorOnBothSidesAndNothingArrives,
                            WhatIsThrownOnACarriersThreadEndsNothingButItsMessage,
                            ForeignFramesAreDroppedAndCountedAndLiesAreRefused, ALostPeerIsToldOnceAndEndsLaterSends,
                            APeerThatSaysGoodbyeIsNoFailure);

}  // namespace penstock::testing
