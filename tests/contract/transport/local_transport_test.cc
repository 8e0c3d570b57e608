#include "engine/transport/local_transport.h"

#include <gmock/gmock.h>

#include "tests/contract/transport/transport_contract.h"
#include "tests/support/fake_streams.h"

namespace penstock::testing {
namespace {

struct LocalTransportFactory {
  std::unique_ptr<LocalTransport> Make(int stages) {
    return std::make_unique<LocalTransport>(std::vector<DeviceStreams*>(stages, &CpuStreams()), nullptr);
  }
  std::optional<ValuesInFlight> Receive(LocalTransport& transport, const MessageKey& key) {
    return transport.TryReceive(key);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Local, TransportContract, LocalTransportFactory);

TEST(LocalTransport, TellsArrivalsAndCountsWhatWaits) {
  std::vector<MessageKey> arrived;
  LocalTransport transport({&CpuStreams(), &CpuStreams()}, [&](const MessageKey& key) { arrived.push_back(key); });
  transport.Open(7);
  const MessageKey key{.run = 7, .stage = 1, .micro_batch = 3};
  ASSERT_TRUE(transport.Send(key, Batch(at::full({1}, 1.0))).ok());
  ASSERT_EQ(arrived.size(), 1);
  EXPECT_EQ(arrived[0], key);
  EXPECT_EQ(transport.waiting(), 1);
  transport.Close(7);
  EXPECT_EQ(transport.waiting(), 0);
}

TEST(LocalTransport, CarriesTensorsInsideOfContainersBetweenAccelerators) {
  StreamLog log;
  FakeStreams a("a", &log);
  FakeStreams b("b", &log);
  LocalTransport transport({&a, &b}, nullptr);
  transport.Open(1);
  const at::Tensor outer = at::full({1}, 1.0);
  const at::Tensor inner = at::full({1}, 2.0);
  const at::Tensor whole = at::full({1}, 3.0);
  const MessageKey key{.run = 1, .stage = 1, .micro_batch = 0};
  const Batch sent = Batch::Tuple({Value(), Value::Dict({{"n", Value(7)}, {"list", Value::List({Value(inner)})}}),
                                   Value(outer), WholeTensor{whole}});
  ASSERT_TRUE(transport.Send(key, sent).ok());
  const std::vector<std::string> lines = log.Take();
  for (const at::Tensor& tensor : {outer, inner, whole}) {
    EXPECT_THAT(lines, ::testing::Contains("a.out keeps " + FakeStreams::AddressOf(tensor)));
  }
  const std::optional<ValuesInFlight> got = transport.TryReceive(key);
  ASSERT_TRUE(got.has_value());
  ASSERT_NE(got->ready, nullptr);
  const Batch& values = got->values;
  EXPECT_TRUE(values[0].is_none());
  EXPECT_EQ(*values[1].dict()->at(0).second.integer(), 7);
  const at::Tensor* copy = values[1].dict()->at(1).second.list()->at(0).tensor();
  EXPECT_EQ(copy->item<float>(), 2);
  EXPECT_FALSE(copy->is_same(inner));
  EXPECT_EQ(values.TensorAt(2).item<float>(), 1);
  EXPECT_EQ(values[3].whole()->item<float>(), 3);
}

}  // namespace
}  // namespace penstock::testing
