#include "server/credential_files.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/identity/test_certificates.h"
#include "tests/unit/identity/test_files.h"

namespace penstock::testing {
namespace {

class CredentialFilesTest : public ::testing::Test {
 protected:
  CredentialFilesTest() {
    whole_.listen = "127.0.0.1:0";
    whole_.tls_cert = files_.Write("cert", certificate_.pem());
    whole_.tls_key = files_.Write("key", certificate_.key());
    whole_.tls_client_ca = files_.Write("ca", certificate_.pem());
    whole_.identity_map = files_.Write("map", "ann train *\n");
    whole_.token_file = files_.Write("tokens", "");
  }
  // The flag that is named, or "OK".
  std::string Fault(const DaemonOptions& options) {
    const absl::Status status = CredentialFiles::Open(options, &clock_).status();
    return status.ok() ? "OK" : ValuesOf(status)["field"];
  }
  std::string FaultWithout(std::string DaemonOptions::*member) {
    DaemonOptions options = whole_;
    (options.*member).clear();
    return Fault(options);
  }

  const TestFiles files_;
  FakeClock clock_;
  const TestCertificate certificate_{TestCertificate::Options{}};
  DaemonOptions whole_;
};

TEST_F(CredentialFilesTest, WithoutACertificateNobodyIsAsked) {
  for (const auto& [listen, role] : {std::pair("127.0.0.1:0", Role::kAdmin), std::pair("[::1]:0", Role::kAdmin),
                                     std::pair("unix:/tmp/socket", Role::kAdmin), std::pair("0.0.0.0:0", Role::kInfer),
                                     std::pair("192.0.2.1:8470", Role::kInfer), std::pair("[::]:0", Role::kInfer)}) {
    DaemonOptions options;
    options.listen = listen;
    const auto files = CredentialFiles::Open(options, &clock_);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->certificates, nullptr);
    EXPECT_FALSE(files->authenticator->knows_callers());
    EXPECT_EQ(files->authenticator->Authenticate({.name = "ann"})->role, role) << listen;
  }
}

TEST_F(CredentialFilesTest, WithOneCallersShowWhoTheyAre) {
  const auto files = CredentialFiles::Open(whole_, &clock_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_NE(files->certificates, nullptr);
  EXPECT_TRUE(files->authenticator->knows_callers());
  EXPECT_EQ(ReasonOf(files->authenticator->Authenticate({.tls = true}).status()), "CREDENTIAL_MISSING");
  EXPECT_EQ(files->authenticator->Authenticate({})->role, Role::kViewer) << "the health port";
}

TEST_F(CredentialFilesTest, NoFlagDoesNothingAlone) {
  for (const auto& [member, flag] : std::vector<std::pair<std::string DaemonOptions::*, std::string>>{
           {&DaemonOptions::tls_key, "--tls-key"},
           {&DaemonOptions::tls_client_ca, "--tls-client-ca"},
           {&DaemonOptions::identity_map, "--identity-map"},
           {&DaemonOptions::token_file, "--token-file"}}) {
    DaemonOptions options;
    options.*member = "x";
    EXPECT_EQ(Fault(options), flag);
  }
}

TEST_F(CredentialFilesTest, WhatACertificateNeedsIsThere) {
  EXPECT_EQ(FaultWithout(&DaemonOptions::tls_key), "--tls-cert");
  EXPECT_EQ(FaultWithout(&DaemonOptions::identity_map), "--tls-cert");
  EXPECT_EQ(FaultWithout(&DaemonOptions::tls_client_ca), "OK") << "tokens alone";
  EXPECT_EQ(FaultWithout(&DaemonOptions::token_file), "OK") << "certificates alone";
  DaemonOptions nobody = whole_;
  nobody.tls_client_ca.clear();
  nobody.token_file.clear();
  EXPECT_EQ(Fault(nobody), "--tls-cert");
  DaemonOptions on_socket = whole_;
  on_socket.listen = "unix:/run/api";
  EXPECT_EQ(Fault(on_socket), "--listen");
}

}  // namespace
}  // namespace penstock::testing
