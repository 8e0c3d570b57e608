#include "server/peer/grpc_carrier.h"

#include "tests/contract/carrier/carrier_contract.h"
#include "tests/contract/carrier/carrier_process_contract.h"
#include "tests/contract/carrier/grpc_carrier_factory.h"
#include "tests/contract/transport/group_transport_contract.h"
#include "tests/contract/transport/transport_contract.h"
#include "tests/unit/identity/test_certificates.h"

namespace penstock::testing {

const char* const kCarrierRank = PENSTOCK_CARRIER_RANK;

namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, CarrierContract, GrpcCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, CarrierProcessContract, GrpcCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, GroupTransportContract, GrpcCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(GrpcTwoRanks, TransportContract, TwoRanksFactory<GrpcCarrierFactory>);

// With certificates of one authority on both sides.
struct GrpcTlsCarrierFactory : GrpcCarrierFactory {
  GrpcTlsCarrierFactory() {
    const absl::Time now = absl::Now();
    const TestCertificate authority({.name = "ranks", .begin = now - absl::Hours(1), .end = now + absl::Hours(1)});
    const TestCertificate rank(
        {.name = "rank", .san = "IP:127.0.0.1", .begin = now - absl::Hours(1), .end = now + absl::Hours(1)},
        &authority);
    grpc::SslServerCredentialsOptions server(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    server.pem_root_certs = authority.pem();
    server.pem_key_cert_pairs = {{rank.key(), rank.pem()}};
    options.server_credentials = grpc::SslServerCredentials(server);
    options.channel_credentials = grpc::SslCredentials({authority.pem(), rank.key(), rank.pem()});
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(GrpcTls, CarrierContract, GrpcTlsCarrierFactory);

TEST(GrpcCarrier, AConnectionWithoutACertificateIsRefused) {
  GrpcTlsCarrierFactory with;
  GrpcCarrierFactory without;
  CarrierEnd end(with.Make(Rank(0)));
  CarrierEnd stranger(without.Make(Rank(1)));
  ASSERT_TRUE(stranger.Start({{Rank(0), end.carrier->address()}}).ok());
  ASSERT_TRUE(stranger.AwaitLosses(1));
}

// Nothing is sent to it, so that no frame can be late.
TEST(GrpcCarrier, AFrozenRankIsLostWhileNothingIsSentToIt) {
  GrpcCarrierFactory factory;
  factory.options.keepalive_nanos = 2'000'000'000;  // so that a busy machine is not taken for a frozen one
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
