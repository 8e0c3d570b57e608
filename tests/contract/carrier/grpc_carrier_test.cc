#include "server/peer/grpc_carrier.h"

#include "tests/contract/carrier/carrier_contract.h"
#include "tests/contract/carrier/carrier_process_contract.h"
#include "tests/contract/carrier/grpc_carrier_factory.h"
#include "tests/contract/transport/group_transport_contract.h"
#include "tests/contract/transport/transport_contract.h"

namespace penstock::testing {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, CarrierContract, GrpcCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, CarrierProcessContract, GrpcCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, GroupTransportContract, GrpcCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(GrpcTwoRanks, TransportContract, TwoRanksFactory<GrpcCarrierFactory>);

// Nothing is sent to it, so that no frame can be late.
TEST(GrpcCarrier, AFrozenRankIsLostWhileNothingIsSentToIt) {
  GrpcCarrierFactory factory;
  factory.options.keepalive_nanos = 500'000'000;
  CarrierEnd end(factory.Make(Rank(0)));
  OtherRank other("grpc");
  ASSERT_TRUE(end.Start({{Rank(1), other.Address()}}).ok());
  other.Tell(end.carrier->address());
  ASSERT_TRUE(end.AwaitArrivals(3));
  other.Freeze();
  ASSERT_TRUE(end.AwaitLosses(1));
  end.carrier->Close();
  absl::MutexLock lock(&end.mu);
  ASSERT_EQ(end.lost.size(), 1);
  EXPECT_EQ(ReasonOf(end.lost[0].second), "RANK_LOST");
  EXPECT_EQ(end.headers.size(), end.arrivals.size());
}

}  // namespace
}  // namespace penstock::testing
