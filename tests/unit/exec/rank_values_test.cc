// A rank that sends its leader values that nobody has asked for, beside those that were: they change nothing.

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/transport/group_transport.h"
#include "tests/support/small_specs.h"
#include "tests/unit/exec/over_ranks.h"

namespace penstock::testing {
namespace {

// Zeros under these keys go to the leader before and after each output.
struct Lies {
  std::vector<MessageKey> before;
  std::vector<MessageKey> after;
};
using MakeLies = Lies (*)(const MessageKey& truth);

class LyingCarrier final : public Carrier {
 public:
  LyingCarrier(std::unique_ptr<Carrier> to, const MakeLies* lies) : to_(std::move(to)), lies_(*lies) {}
  std::string address() const override { return to_->address(); }
  absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) override {
    return to_->Start(peers, std::move(handlers));
  }
  void Send(Rank to, Frame frame) override {
    const absl::StatusOr<FrameHeader> header = DecodeFrameHeader(frame.header);
    ASSERT_TRUE(header.ok()) << header.status();
    Lies lies;
    if (to == Rank(0) && header->kind == FrameKind::kMessage) {
      const auto message = DecodeTensorMessage(header->content, header->payload_bytes);
      ASSERT_TRUE(message.ok()) << message.status();
      if (message->key.kind == MessageKind::kOutput) lies = lies_(message->key);
    }
    const Frame truth = frame;
    for (const MessageKey& key : lies.before) Lie(truth, key);
    to_->Send(to, std::move(frame));
    for (const MessageKey& key : lies.after) Lie(truth, key);
  }
  void Disconnect(Rank peer, const absl::Status& why) override { to_->Disconnect(peer, why); }
  void Close() override { to_->Close(); }

 private:
  void Lie(const Frame& truth, const MessageKey& key) {
    const auto message = EncodeTensorMessage(key, Batch(at::zeros({1, kSmallWidth})));
    ASSERT_TRUE(message.ok()) << message.status();
    FrameHeader header = *DecodeFrameHeader(truth.header);
    header.stream = StreamOf(key);
    header.payload_bytes = ByteSize(message->payload);
    header.content = message->header;
    to_->Send(Rank(0), {.header = EncodeFrameHeader(header), .payload = message->payload});
  }

  const std::unique_ptr<Carrier> to_;
  const MakeLies& lies_;
};

TEST(RankValues, OnlyThoseThatWereAskedForCountEachOnce) {
  const MakeLies kinds[] = {
      [](const MessageKey& truth) -> Lies {  // of a stage that is not the last one
        MessageKey lie = truth;
        lie.stage = 0;
        return {.before = {lie}};
      },
      [](const MessageKey& truth) -> Lies { return {.after = {truth}}; },
      [](const MessageKey& truth) -> Lies {
        MessageKey lie = truth;
        lie.micro_batch += 2;
        return {.before = {lie}};
      },
  };
  const ForwardRequest question = Ask(NamedTensors{{"input", Range({2, kSmallWidth})}});
  DevicePool alone(ThreeCpus(), DevicePool::Mode::kThreads);
  const auto plain = MakeAlone(alone, SmallMlp(2, 2));
  Inference wanted;
  wanted.Ask(*plain, question);
  ASSERT_TRUE(wanted.Answer().ok()) << wanted.answer.status();
  for (const MakeLies& lies : kinds) {
    SCOPED_TRACE(&lies - kinds);
    FakeCarrier::Network network;
    GroupInProcess group(2, ThreeCpus(), [&](Rank self) -> std::unique_ptr<Carrier> {
      return std::make_unique<LyingCarrier>(network.Make(self), &lies);
    });
    const auto over = MakeOver(group, SmallMlp(2, 2), {1, 1});
    for (int i = 0; i < 3; ++i) {
      Inference got;
      got.Ask(*over, question);
      ASSERT_TRUE(got.Answer().ok()) << got.answer.status();
      EXPECT_TRUE(SameValues(got.answer->outputs, wanted.answer->outputs));
    }
  }
}

}  // namespace
}  // namespace penstock::testing
