#include "engine/ucx/ucx_carrier.h"

#include <cstdlib>

#include "engine/ucx/ucx_environment.h"
#include "tests/contract/carrier/carrier_contract.h"
#include "tests/contract/carrier/carrier_process_contract.h"
#include "tests/contract/transport/group_transport_contract.h"
#include "tests/contract/transport/transport_contract.h"

namespace penstock::testing {

const char* const kCarrierRank = PENSTOCK_CARRIER_RANK;

namespace {

struct UcxCarrierFactory {
  static constexpr const char* kKind = "ucx";
  std::unique_ptr<Carrier> Make(Rank, int64_t send_timeout_nanos = kMinuteNanos) {
    auto carrier = UcxCarrier::Create({.transfer_timeout_nanos = send_timeout_nanos});
    EXPECT_TRUE(carrier.ok()) << carrier.status();
    return *std::move(carrier);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CarrierContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CarrierProcessContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, GroupTransportContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxTwoRanks, TransportContract, TwoRanksFactory<UcxCarrierFactory>);

// CMakeLists.txt sets the same for this program.
TEST(UcxEnvironment, IsThatOfThisProgram) {
  for (const auto& [name, value] : UcxEnvironment({.network_interface = "lo"})) {
    const char* const set = std::getenv(name.c_str());
    ASSERT_NE(set, nullptr) << name;
    EXPECT_EQ(set, value) << name;
  }
}

}  // namespace
}  // namespace penstock::testing
