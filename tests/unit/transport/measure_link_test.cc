// Links are measured by echoes, whatever becomes of them.

#include "engine/transport/measure_link.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/thread.h"
#include "tests/support/fake_carrier.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

constexpr Rank kSelf(0);
constexpr Rank kPeer(1);

// A link with figures of its own, on a clock that only it moves: what is sent is there at once, and later.
class TimedCarrier : public Carrier {
 public:
  TimedCarrier(testing::FakeClock* clock, int64_t latency_nanos, double bytes_per_nano)
      : clock_(clock), latency_nanos_(latency_nanos), bytes_per_nano_(bytes_per_nano) {}

  std::string address() const override { return ""; }
  absl::Status Start(const std::map<Rank, std::string>&, Handlers its_handlers) override {
    handlers = std::move(its_handlers);
    return absl::OkStatus();
  }
  void Send(Rank to, Frame frame) override {
    const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(frame.header);
    if (!header.ok() || header->kind != FrameKind::kProbe) return;
    const int64_t bytes = ByteSize(frame.payload);
    sizes.push_back(bytes);
    clock_->AdvanceNanos(std::exchange(connecting_nanos, 0) + 2 * latency_nanos_ +
                         static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_nano_));
    if (answers == 0) return;
    --answers;
    FrameHeader echo = {.from = to, .to = header->from, .kind = FrameKind::kEcho, .stream = header->stream};
    EXPECT_TRUE(handlers.on_header(EncodeFrameHeader(echo), 0).ok());
  }
  void Disconnect(Rank, const absl::Status&) override {}
  void Close() override {}

  Handlers handlers;
  std::vector<int64_t> sizes;    // of probes
  int answers = 1000;            // that are still given
  int64_t connecting_nanos = 0;  // that the first one takes longer

 private:
  testing::FakeClock* const clock_;
  const int64_t latency_nanos_;
  const double bytes_per_nano_;
};

// Edges over such a link; the clock moves by itself past every deadline once the link is silent.
struct TimedLink {
  TimedLink(int64_t latency_nanos, double bytes_per_nano) {
    auto made = std::make_unique<TimedCarrier>(&clock, latency_nanos, bytes_per_nano);
    carrier = made.get();
    edges = std::make_unique<PeerEdges>(PeerEdges::Options{.self = kSelf, .clock = &clock}, std::move(made));
    EXPECT_TRUE(edges->Start({{kPeer, ""}, {Rank(2), ""}}).ok());
  }

  testing::FakeClock clock;
  TimedCarrier* carrier = nullptr;
  std::unique_ptr<PeerEdges> edges;
};

TEST(MeasureLink, FindsLatencyAndBandwidth) {
  TimedLink timed(/*latency_nanos=*/50'000, /*bytes_per_nano=*/2);
  const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock);
  EXPECT_TRUE(link.measured) << link.problem;
  EXPECT_EQ(link.one, kSelf);
  EXPECT_EQ(link.other, kPeer);
  EXPECT_DOUBLE_EQ(link.latency_seconds, 50e-6);
  EXPECT_DOUBLE_EQ(link.bytes_per_second, 2e9);
  EXPECT_EQ(timed.carrier->sizes.back(), kMaximumProbeBytes);
}

// The second megabyte has time, eight do not.
TEST(MeasureLink, ASlowLinkIsMeasuredWithWhatThereIsTimeFor) {
  TimedLink timed(1'000'000, 0.01);  // 10 MB/s: 105 ms for the one, 839 for the others
  const int64_t begin = timed.clock.NowNanos();
  const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock);
  EXPECT_TRUE(link.measured) << link.problem;
  EXPECT_NEAR(link.bytes_per_second, 1e7, 1);
  EXPECT_EQ(timed.carrier->sizes.back(), 1 << 20);
  EXPECT_LE(timed.clock.NowNanos() - begin, kLinkBudgetNanos);
}

TEST(MeasureLink, ALinkThatIsSlowerThanCanBeMeasuredHasABound) {
  TimedLink timed(1'000'000, 0.001);  // 65 ms for the smallest size
  timed.carrier->answers = 2;         // the empty ones
  const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock, /*budget_nanos=*/16'100'000);
  EXPECT_TRUE(link.measured) << link.problem;
  EXPECT_DOUBLE_EQ(link.latency_seconds, 1e-3);
  EXPECT_NEAR(link.bytes_per_second, 65536 / 10.1e-3, 1);  // 12.1 ms were left, and 2 ms are not of its bytes
}

// Empty messages leave time for the others.
TEST(MeasureLink, ALinkWithALongLatencyHasItsBandwidth) {
  for (const int64_t latency_nanos : {15'000'000, 20'000'000, 40'000'000}) {
    TimedLink timed(latency_nanos, 1);
    const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock);
    EXPECT_TRUE(link.measured) << link.problem;
    EXPECT_NEAR(link.latency_seconds, static_cast<double>(latency_nanos) * 1e-9, 1e-12);
    EXPECT_NEAR(link.bytes_per_second, 1e9, 1e6) << latency_nanos;
  }
}

TEST(MeasureLink, TheMessageThatConnectsIsNotTheOnlyOne) {
  TimedLink timed(1'000'000, 1);
  timed.carrier->connecting_nanos = 200'000'000;
  const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock);
  EXPECT_TRUE(link.measured) << link.problem;
  EXPECT_DOUBLE_EQ(link.latency_seconds, 1e-3);
  EXPECT_NEAR(link.bytes_per_second, 1e9, 1e6);
}

TEST(MeasureLink, ALatencyThatTakesAllTheTimeIsAProblem) {
  for (const int64_t latency_nanos : {70'000'000, 80'000'000, 140'000'000}) {
    TimedLink timed(latency_nanos, 1);
    const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock);
    EXPECT_FALSE(link.measured) << link.bytes_per_second;
    EXPECT_FALSE(link.problem.empty());
  }
}

TEST(MeasureLink, ALinkThatNeverAnswersIsNotMeasured) {
  TimedLink timed(1'000'000, 1);
  timed.carrier->answers = 0;
  const Link link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock, /*budget_nanos=*/1'000'000);
  EXPECT_FALSE(link.measured);
  EXPECT_EQ(link.problem, "no echo from rank 1 in time");
  EXPECT_EQ(link.bytes_per_second, 0);
  EXPECT_EQ(timed.carrier->sizes.size(), 1u);
}

TEST(MeasureLink, ALostPeerEndsTheMeasurement) {
  TimedLink timed(1'000, 1);
  timed.carrier->answers = 0;
  Link link;
  {
    Thread measuring("measuring", [&] { link = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock); });
    timed.clock.AwaitWaiters(1);  // for an echo
    timed.carrier->handlers.on_lost(kPeer, absl::UnavailableError("gone"));
  }
  EXPECT_FALSE(link.measured);
  EXPECT_EQ(link.problem, "rank 1 is lost: gone");
  const Link later = MeasureLink(timed.edges.get(), kSelf, kPeer, &timed.clock);
  EXPECT_FALSE(later.measured);
  EXPECT_EQ(later.problem, "rank 1 is lost: gone");
  EXPECT_EQ(MeasureLink(timed.edges.get(), kSelf, Rank(7), &timed.clock).problem, "rank 7 is not in this group");
}

TEST(MeasureLink, ALostPeerEndsNoProbeOfAnother) {
  TimedLink timed(1'000, 1);
  timed.carrier->answers = 0;
  std::vector<absl::Status> ended;
  timed.edges->Probe(kPeer, {}, [&](const absl::Status& status) { ended.push_back(status); });
  timed.carrier->handlers.on_lost(Rank(2), absl::UnavailableError("gone"));
  EXPECT_TRUE(ended.empty());
  timed.carrier->handlers.on_lost(kPeer, absl::UnavailableError("gone, too"));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].message(), "rank 1 is lost: gone, too");
}

// Each probe is answered once, whoever goes first.
TEST(MeasureLink, ProbesEndWithTheEdges) {
  TimedLink timed(1'000, 1);
  timed.carrier->answers = 0;
  std::vector<absl::Status> ended;
  timed.edges->Probe(kPeer, {}, [&](const absl::Status& status) { ended.push_back(status); });
  EXPECT_TRUE(ended.empty());
  timed.edges->Close();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(ended[0])) << ended[0];
  timed.edges->Probe(kPeer, {}, [&](const absl::Status& status) { ended.push_back(status); });
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_TRUE(absl::IsCancelled(ended[1])) << ended[1];
}

TEST(MeasureLink, APeerReadsOneProbeAtATimeAndNoHugeOnes) {
  TimedLink timed(1'000, 1);
  const auto probe = [&](int64_t bytes) {
    FrameHeader header = {.from = kPeer, .to = kSelf, .kind = FrameKind::kProbe, .payload_bytes = bytes};
    return timed.carrier->handlers.on_header(EncodeFrameHeader(header), bytes);
  };
  EXPECT_FALSE(probe(kMaximumProbeBytes + 1).ok());
  auto first = probe(10);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ByteSize(first->places), 10);
  EXPECT_FALSE(probe(10).ok());
  EXPECT_EQ(timed.edges->counts().malformed, 2);
  first->on_ended(absl::UnavailableError("half of it"));
  auto next = probe(10);
  EXPECT_TRUE(next.ok()) << next.status();
  next->on_ended(absl::OkStatus());
  for (const auto& [peer, received] : timed.edges->counts().received) {
    EXPECT_EQ(received.messages, 0) << "no message of anybody's";
  }
}

// Echoes that nobody waits for, of another rank, or with a payload are dropped.
TEST(MeasureLink, StrangeEchoesAreDropped) {
  TimedLink timed(1'000, 1);
  timed.carrier->answers = 0;
  int ended = 0;
  timed.edges->Probe(kPeer, {}, [&](const absl::Status&) { ++ended; });
  const auto echo = [&](Rank from, int64_t number, int64_t bytes) {
    FrameHeader header = {.from = from, .to = kSelf, .kind = FrameKind::kEcho, .stream = {.number = number}};
    timed.carrier->handlers.on_header(EncodeFrameHeader(header), bytes).status().IgnoreError();
  };
  echo(kPeer, 99, 0);
  echo(Rank(2), 1, 0);
  echo(kPeer, 1, 5);
  EXPECT_EQ(ended, 0);
  echo(kPeer, 1, 0);
  EXPECT_EQ(ended, 1);
  echo(kPeer, 1, 0);
  EXPECT_EQ(ended, 1);
}

TEST(MeasureLink, RanksMeasureEachOtherAtTheSameTime) {
  testing::FakeCarrier::Network network;
  std::vector<std::unique_ptr<PeerEdges>> edges;
  std::map<Rank, std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    edges.push_back(std::make_unique<PeerEdges>(PeerEdges::Options{.self = Rank(rank)}, network.Make(Rank(rank))));
    addresses[Rank(rank)] = edges.back()->address();
  }
  for (int rank = 0; rank < 2; ++rank) {
    std::map<Rank, std::string> peers = addresses;
    peers.erase(Rank(rank));
    ASSERT_TRUE(edges[rank]->Start(peers).ok());
  }
  constexpr int64_t kPatienceNanos = 60'000'000'000;
  Link back;
  {
    Thread other("measuring",
                 [&] { back = MeasureLink(edges[1].get(), Rank(1), Rank(0), RealClock(), kPatienceNanos); });
    const Link there = MeasureLink(edges[0].get(), Rank(0), Rank(1), RealClock(), kPatienceNanos);
    EXPECT_TRUE(there.measured) << there.problem;
    EXPECT_GT(there.bytes_per_second, 0);
    EXPECT_GT(there.latency_seconds, 0);
  }
  EXPECT_TRUE(back.measured) << back.problem;
  EXPECT_EQ(back.one, Rank(0));
  EXPECT_EQ(back.other, Rank(1));
  for (auto& one : edges) one->Close();
}

}  // namespace
}  // namespace penstock
