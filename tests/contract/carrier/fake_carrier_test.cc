#include "tests/support/fake_carrier.h"

#include "tests/contract/carrier/carrier_contract.h"

namespace penstock::testing {
namespace {

struct FakeCarrierFactory {
  std::unique_ptr<Carrier> Make(Rank self) { return network.Make(self); }
  FakeCarrier::Network network;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Fake, CarrierContract, FakeCarrierFactory);

}  // namespace
}  // namespace penstock::testing
