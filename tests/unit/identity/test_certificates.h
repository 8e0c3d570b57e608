#pragma once

// Certificates made for a test, valid around the FakeClock's zero.

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "engine/base/check.h"

namespace penstock::testing {

template <auto write, typename Object>
std::string ToPem(Object* object) {
  BIO* bio = BIO_new(BIO_s_mem());
  PENSTOCK_CHECK(write(bio, object) == 1);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  std::string pem(data, static_cast<size_t>(size));
  BIO_free(bio);
  return pem;
}

// A certificate with its key. Without an issuer it signs itself, and may sign others.
class TestCertificate {
 public:
  struct Options {
    std::string name = "test";
    std::string san = {};  // "URI:spiffe://a/b,DNS:c"
    absl::Time begin = absl::UnixEpoch();
    absl::Time end = absl::UnixEpoch() + absl::Hours(24);
  };

  explicit TestCertificate(const Options& options, const TestCertificate* issuer = nullptr)
      : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), certificate_(X509_new(), X509_free) {
    X509* made = certificate_.get();
    X509_set_version(made, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
    ASN1_TIME_set(X509_getm_notBefore(made), absl::ToTimeT(options.begin));
    ASN1_TIME_set(X509_getm_notAfter(made), absl::ToTimeT(options.end));
    X509_set_pubkey(made, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(options.name.c_str()), -1, -1, 0);
    const TestCertificate* signer = issuer == nullptr ? this : issuer;
    X509_set_issuer_name(made, X509_get_subject_name(signer->certificate_.get()));
    if (issuer == nullptr) Extend(NID_basic_constraints, "critical,CA:TRUE");
    if (!options.san.empty()) Extend(NID_subject_alt_name, options.san);
    PENSTOCK_CHECK(X509_sign(made, signer->key_.get(), EVP_sha256()) > 0);
  }

  std::string pem() const { return ToPem<PEM_write_bio_X509>(certificate_.get()); }
  std::string key() const {
    return ToPem<[](BIO* bio, EVP_PKEY* key) {
      return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    }>(key_.get());
  }
  std::string encrypted_key() const {
    return ToPem<[](BIO* bio, EVP_PKEY* key) {
      const auto* password = reinterpret_cast<const unsigned char*>("secret");
      return PEM_write_bio_PrivateKey(bio, key, EVP_aes_256_cbc(), password, 6, nullptr, nullptr);
    }>(key_.get());
  }

 private:
  void Extend(int kind, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    PENSTOCK_CHECK(extension != nullptr && X509_add_ext(certificate_.get(), extension, -1) == 1);
    X509_EXTENSION_free(extension);
  }

  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_;
  const std::unique_ptr<X509, void (*)(X509*)> certificate_;
};

}  // namespace penstock::testing
