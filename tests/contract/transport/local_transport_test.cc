#include "engine/transport/local_transport.h"

#include "tests/contract/transport/transport_contract.h"

namespace penstock::testing {
namespace {

struct LocalTransportFactory {
  std::unique_ptr<LocalTransport> Make(int stages) {
    return std::make_unique<LocalTransport>(std::vector<DeviceStreams*>(stages, &CpuStreams()), nullptr);
  }
  void Open(LocalTransport& transport, int64_t run) { transport.Open(run); }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Local, TransportContract, LocalTransportFactory);

TEST(LocalTransport, TellsArrivalsAndCountsWhatWaits) {
  std::vector<MessageKey> arrived;
  LocalTransport transport({&CpuStreams(), &CpuStreams()}, [&](const MessageKey& key) { arrived.push_back(key); });
  transport.Open(7);
  const MessageKey key{.run = 7, .gradient = false, .stage = 1, .micro_batch = 3};
  ASSERT_TRUE(transport.Send(key, Batch(at::full({1}, 1.0))).ok());
  ASSERT_EQ(arrived.size(), 1);
  EXPECT_EQ(arrived[0], key);
  EXPECT_EQ(transport.waiting(), 1);
  transport.Close(7);
  EXPECT_EQ(transport.waiting(), 0);
}

}  // namespace
}  // namespace penstock::testing
