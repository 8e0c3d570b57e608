#include "server/identity/certificate_files.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "server/identity/followed_files.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/identity/test_certificates.h"
#include "tests/unit/identity/test_files.h"

namespace penstock::testing {
namespace {

using Options = TestCertificate::Options;

class CertificateFilesTest : public ::testing::Test {
 protected:
  static absl::Status CheckCertificate(const std::string& chain, const std::string& key, const std::string& ca = "") {
    return ServerCertificate::Check(chain, key, ca, absl::UnixEpoch() + absl::Hours(1)).status();
  }
  static std::string FieldOf(const absl::Status& status) { return status.ok() ? "OK" : ValuesOf(status)["field"]; }

  const TestCertificate ca_{Options{.name = "ca"}};
  const TestCertificate first_{Options{.name = "first"}, &ca_};
  const TestCertificate second_{Options{.name = "second"}, &ca_};
};

TEST_F(CertificateFilesTest, AGoodSetIsTaken) {
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), first_.key())), "OK");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem() + ca_.pem(), first_.key(), ca_.pem())), "OK");
  const auto set = ServerCertificate::Check(first_.pem(), first_.key(), "", absl::UnixEpoch());
  EXPECT_EQ(set->end, absl::UnixEpoch() + absl::Hours(24));
}

TEST_F(CertificateFilesTest, EachBadFileIsNamed) {
  const std::string half = first_.pem().substr(0, first_.pem().size() / 2);
  EXPECT_EQ(FieldOf(CheckCertificate("", first_.key())), "--tls-cert");
  EXPECT_EQ(FieldOf(CheckCertificate(half, first_.key())), "--tls-cert");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem() + half, first_.key())), "--tls-cert");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem() + second_.pem(), first_.key())), "--tls-cert");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), "")), "--tls-key");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), second_.key())), "--tls-key");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), first_.encrypted_key())), "--tls-key");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), first_.key().substr(0, 80))), "--tls-key");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), first_.key(), "junk")), "--tls-client-ca");
  EXPECT_EQ(FieldOf(CheckCertificate(first_.pem(), first_.key(), ca_.pem() + half)), "--tls-client-ca");
}

TEST_F(CertificateFilesTest, ACertificateMustBeValidNow) {
  const TestCertificate ended(Options{.name = "ended", .end = absl::UnixEpoch() + absl::Hours(1)}, &ca_);
  EXPECT_EQ(FieldOf(CheckCertificate(ended.pem(), ended.key())), "--tls-cert");
  const TestCertificate later(Options{.name = "later", .begin = absl::UnixEpoch() + absl::Hours(2)}, &ca_);
  EXPECT_EQ(FieldOf(CheckCertificate(later.pem(), later.key())), "--tls-cert");
}

TEST_F(CertificateFilesTest, ARenewalIsPublishedWhenAllOfItIsThere) {
  const TestFiles files;
  FakeClock clock;
  int refused = 0;
  FollowedFiles followed(&clock, [&] { ++refused; });
  const CertificateFiles::Paths paths = {files.Write("cert", first_.pem()), files.Write("key", first_.key()),
                                         files.Write("ca", ca_.pem())};
  const auto certificates = CertificateFiles::Create(paths, &followed, &clock);
  ASSERT_TRUE(certificates.ok()) << certificates.status();
  const auto before = (*certificates)->current();
  EXPECT_EQ(before->chain, first_.pem());

  files.Write("cert", second_.pem());  // the key is still the old one's
  EXPECT_EQ(followed.LookForTest(), 0);
  EXPECT_EQ((*certificates)->current(), before);
  EXPECT_EQ(refused, 1);
  files.Write("key", second_.key());
  EXPECT_EQ(followed.LookForTest(), 1);
  EXPECT_EQ((*certificates)->current()->chain, second_.pem());
  EXPECT_EQ((*certificates)->current()->key, second_.key());

  files.Write("ca", "");  // must not turn off the check of clients
  EXPECT_EQ(followed.LookForTest(), 0);
  EXPECT_EQ((*certificates)->current()->client_ca, ca_.pem());
}

TEST(PeerCertificate, HasTheUrisThenTheDnsNames) {
  const TestCertificate client(
      Options{.name = "not-this-one", .san = "DNS:a.example.org,URI:spiffe://b/c,IP:127.0.0.1,DNS:d"});
  const auto peer = PeerCertificate::Parse(client.pem());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->names, (std::vector<std::string>{"spiffe://b/c", "a.example.org", "d"}));
  EXPECT_EQ(peer->end, absl::UnixEpoch() + absl::Hours(24));
}

TEST(PeerCertificate, WithoutASanHasNoName) {
  EXPECT_EQ(PeerCertificate::Parse(TestCertificate(Options{.name = "ann"}).pem())->names, std::vector<std::string>());
  EXPECT_EQ(ReasonOf(PeerCertificate::Parse("junk").status()), "CREDENTIAL_INVALID");
}

}  // namespace
}  // namespace penstock::testing
