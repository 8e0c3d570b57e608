#include "engine/transport/group_transport.h"

#include "tests/contract/transport/group_transport_contract.h"
#include "tests/contract/transport/transport_contract.h"
#include "tests/support/fake_carrier.h"

namespace penstock::testing {
namespace {

struct FakeCarrierFactory {
  std::unique_ptr<Carrier> Make(Rank self) { return network.Make(self); }
  FakeCarrier::Network network;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Fake, GroupTransportContract, FakeCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(TwoRanks, TransportContract, TwoRanksFactory<FakeCarrierFactory>);

}  // namespace
}  // namespace penstock::testing
