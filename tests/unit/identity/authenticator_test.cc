#include "server/identity/authenticator.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "server/identity/followed_files.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/identity/test_certificates.h"
#include "tests/unit/identity/test_files.h"

namespace penstock::testing {
namespace {

const std::string kTokenAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class AuthenticatorTest : public ::testing::Test {
 protected:
  AuthenticatorTest() {
    files_.Write("map", "spiffe://lab/ann train a-*\nbob infer *\n");
    files_.Write("tokens", kTokenAbc + " bob 1970-01-01T02:00:00Z\n");
    authenticator_ = Authenticator::Create({.identity_map = files_.Path("map"), .token_file = files_.Path("tokens")},
                                           &followed_, &clock_)
                         .value();
  }

  // The identity's name, or the reason.
  std::string By(const Authenticator::Shown& shown) const {
    const auto identity = authenticator_->Authenticate(shown);
    return identity.ok() ? identity->name : ReasonOf(identity.status());
  }
  std::string ByHeader(std::string_view header) const { return By({.tls = true, .authorization = header}); }

  const TestFiles files_;
  FakeClock clock_;
  std::unique_ptr<Authenticator> authenticator_;
  int refused_ = 0;
  FollowedFiles followed_{&clock_, [this] { ++refused_; }};
  const TestCertificate ann_{{.san = "DNS:elsewhere,URI:spiffe://lab/ann"}};
};

TEST_F(AuthenticatorTest, ACertificateIsKnownByANameOfTheMap) {
  const std::string pem = ann_.pem();
  const auto identity = authenticator_->Authenticate({.tls = true, .certificate = pem});
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->name, "spiffe://lab/ann");
  EXPECT_EQ(identity->role, Role::kTrain);
  EXPECT_TRUE(identity->Sees("a-1"));
  EXPECT_FALSE(identity->Sees("b"));
  const TestCertificate stranger({.san = "URI:spiffe://lab/eve"});
  EXPECT_EQ(By({.tls = true, .certificate = stranger.pem()}), "CREDENTIAL_INVALID");
  const TestCertificate nameless({.name = "bob"});
  EXPECT_EQ(By({.tls = true, .certificate = nameless.pem()}), "CREDENTIAL_INVALID");
}

TEST_F(AuthenticatorTest, ACertificateEndsWhileItsConnectionGoesOn) {
  const std::string pem = ann_.pem();
  clock_.Advance(absl::Hours(24) - absl::Seconds(2));
  EXPECT_EQ(By({.tls = true, .certificate = pem}), "spiffe://lab/ann");
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(By({.tls = true, .certificate = pem}), "CREDENTIAL_EXPIRED");
}

TEST_F(AuthenticatorTest, ATokenIsKnownByItsName) {
  EXPECT_EQ(ByHeader("Bearer abc"), "bob");
  EXPECT_EQ(ByHeader("bearer abc"), "bob");
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer abd", "Basic abc", "abc", "Bearer  abc"}) {
    EXPECT_EQ(ByHeader(wrong), "CREDENTIAL_INVALID") << wrong;
  }
  EXPECT_EQ(ByHeader("Bearer " + std::string(5000, 'a')), "CREDENTIAL_INVALID");
  clock_.Advance(absl::Hours(2));
  EXPECT_EQ(ByHeader("Bearer abc"), "CREDENTIAL_EXPIRED");
}

TEST_F(AuthenticatorTest, ATokenCountsBeforeTheCertificate) {
  const std::string pem = ann_.pem();
  EXPECT_EQ(By({.tls = true, .certificate = pem, .authorization = "Bearer abc"}), "bob");
  EXPECT_EQ(By({.tls = true, .certificate = pem, .authorization = "Bearer no"}), "CREDENTIAL_INVALID");
}

TEST_F(AuthenticatorTest, NothingShownIsMissing) { EXPECT_EQ(By({.tls = true, .name = "ann"}), "CREDENTIAL_MISSING"); }

TEST_F(AuthenticatorTest, MapAndTokensAreThoseOfTheMoment) {
  files_.Write("map", "spiffe://lab/ann viewer *\n");
  EXPECT_EQ(followed_.LookForTest(), 1);
  const std::string pem = ann_.pem();
  EXPECT_EQ(authenticator_->Authenticate({.tls = true, .certificate = pem})->role, Role::kViewer);
  EXPECT_EQ(ByHeader("Bearer abc"), "CREDENTIAL_INVALID") << "bob has no line any more";
  files_.Write("map", "bob admin *\n");
  followed_.LookForTest();
  EXPECT_EQ(ByHeader("Bearer abc"), "bob");
  files_.Write("tokens", "");
  followed_.LookForTest();
  EXPECT_EQ(ByHeader("Bearer abc"), "CREDENTIAL_INVALID") << "revoked";
  files_.Write("map", "bob king *\n");
  followed_.LookForTest();
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(By({.tls = true, .certificate = pem}), "CREDENTIAL_INVALID") << "the last good map stays";
}

TEST_F(AuthenticatorTest, InPlaintextACallerHasTheNameThatItGives) {
  Authenticator open(Identity{.role = Role::kInfer}, &clock_);
  const auto named = open.Authenticate({.name = "ann"});
  EXPECT_EQ(named->name, "ann");
  EXPECT_EQ(named->role, Role::kInfer);
  EXPECT_TRUE(named->Sees("anything"));
  EXPECT_EQ(open.Authenticate({})->name, "local");
}

TEST_F(AuthenticatorTest, StartsOnGoodFilesOnly) {
  EXPECT_EQ(
      ValuesOf(Authenticator::Create({.identity_map = files_.Path("none")}, &followed_, &clock_).status())["field"],
      "--identity-map");
  const std::string bad = files_.Write("bad", "x\n");
  EXPECT_EQ(ValuesOf(Authenticator::Create({.identity_map = bad}, &followed_, &clock_).status())["field"], bad + ":1");
}

}  // namespace
}  // namespace penstock::testing
