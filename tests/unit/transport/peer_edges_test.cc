#include "engine/transport/peer_edges.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

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
    const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(frame.header);
    if (header.ok() && header->kind == FrameKind::kTaken) taken += header->messages;
  }
  void Disconnect(Rank, const absl::Status&) override {}
  void Close() override {}

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
  int spared = 0;     // allocations until one fails
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

}  // namespace
}  // namespace penstock
