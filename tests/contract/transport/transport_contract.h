#pragma once

// What every transport promises. An implementation instantiates the suite with a factory:
//   INSTANTIATE_TYPED_TEST_SUITE_P(Local, TransportContract, LocalTransportFactory);

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/transport/transport.h"

namespace penstock::testing {

// Factory: Make(stages) answers a transport; Receive(transport, key) takes a message that is on its way.
template <typename Factory>
class TransportContract : public ::testing::Test {
 protected:
  static Batch Value(double value) { return Batch(at::full({2}, value)); }
  static MessageKey Key(int stage, int micro_batch, bool gradient = false, int64_t run = 1) {
    return {.run = run,
            .kind = gradient ? MessageKind::kGradient : MessageKind::kActivation,
            .stage = stage,
            .micro_batch = micro_batch};
  }
  Factory factory_;
};

TYPED_TEST_SUITE_P(TransportContract);

TYPED_TEST_P(TransportContract, DeliversByKeyNotByOrder) {
  auto transport = this->factory_.Make(3);
  transport->Open(1);
  EXPECT_FALSE(transport->TryReceive(this->Key(1, 0)).has_value());
  ASSERT_TRUE(transport->Send(this->Key(1, 1), this->Value(11)).ok());
  ASSERT_TRUE(transport->Send(this->Key(1, 0), this->Value(10)).ok());
  ASSERT_TRUE(transport->Send(this->Key(1, 0, /*gradient=*/true), this->Value(20)).ok());
  EXPECT_EQ(this->factory_.Receive(*transport, this->Key(1, 0))->values.TensorAt(0)[0].template item<float>(), 10);
  EXPECT_EQ(this->factory_.Receive(*transport, this->Key(1, 1))->values.TensorAt(0)[0].template item<float>(), 11);
  EXPECT_EQ(this->factory_.Receive(*transport, this->Key(1, 0, true))->values.TensorAt(0)[0].template item<float>(),
            20);
}

TYPED_TEST_P(TransportContract, GivesEachMessageOnce) {
  auto transport = this->factory_.Make(2);
  transport->Open(1);
  ASSERT_TRUE(transport->Send(this->Key(1, 0), this->Value(1)).ok());
  EXPECT_TRUE(this->factory_.Receive(*transport, this->Key(1, 0)).has_value());
  EXPECT_FALSE(transport->TryReceive(this->Key(1, 0)).has_value());
}

TYPED_TEST_P(TransportContract, RefusesAKeyThatIsSentTwice) {
  auto transport = this->factory_.Make(2);
  transport->Open(1);
  ASSERT_TRUE(transport->Send(this->Key(1, 0), this->Value(1)).ok());
  EXPECT_EQ(ReasonOf(transport->Send(this->Key(1, 0), this->Value(2))), "BUG");
  EXPECT_EQ(this->factory_.Receive(*transport, this->Key(1, 0))->values.TensorAt(0)[0].template item<float>(), 1);
}

TYPED_TEST_P(TransportContract, ForgetsAClosedRunAndKeepsOthers) {
  auto transport = this->factory_.Make(2);
  transport->Open(1);
  transport->Open(2);
  ASSERT_TRUE(transport->Send(this->Key(1, 0, false, 1), this->Value(1)).ok());
  ASSERT_TRUE(transport->Send(this->Key(1, 0, false, 2), this->Value(2)).ok());
  transport->Close(1);
  EXPECT_FALSE(transport->TryReceive(this->Key(1, 0, false, 1)).has_value());
  EXPECT_TRUE(transport->Send(this->Key(1, 1, false, 1), this->Value(3)).ok());  // dropped
  EXPECT_FALSE(transport->TryReceive(this->Key(1, 1, false, 1)).has_value());
  EXPECT_EQ(this->factory_.Receive(*transport, this->Key(1, 0, false, 2))->values.TensorAt(0)[0].template item<float>(),
            2);
}

TYPED_TEST_P(TransportContract, SurvivesManySendersAtOnce) {
  auto transport = this->factory_.Make(2);
  transport->Open(1);
  constexpr int kSenders = 4;
  constexpr int kMessages = 50;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int sender = 0; sender < kSenders; ++sender) {
      threads.push_back(std::make_unique<Thread>("sender", [&, sender] {
        for (int i = 0; i < kMessages; ++i) {
          const int key = sender * kMessages + i;
          EXPECT_TRUE(transport->Send(this->Key(1, key), this->Value(key)).ok());
        }
      }));
    }
  }
  for (int key = 0; key < kSenders * kMessages; ++key) {
    auto message = this->factory_.Receive(*transport, this->Key(1, key));
    ASSERT_TRUE(message.has_value()) << key;
    EXPECT_EQ(message->values.TensorAt(0)[0].template item<float>(), key);
  }
}

REGISTER_TYPED_TEST_SUITE_P(TransportContract, DeliversByKeyNotByOrder, GivesEachMessageOnce,
                            RefusesAKeyThatIsSentTwice, ForgetsAClosedRunAndKeepsOthers, SurvivesManySendersAtOnce);

}  // namespace penstock::testing
