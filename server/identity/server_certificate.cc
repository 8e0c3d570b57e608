#include "server/identity/server_certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

Bio Reader(std::string_view pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// Without it OpenSSL asks the terminal for the password of an encrypted key.
int NoPassword(char*, int, int, void*) { return -1; }

// All certificates of a text, which has at least one and none that breaks off.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(std::string_view pem, std::string_view flag) {
  const Bio bio = Reader(pem);
  std::vector<Certificate> list;
  ERR_clear_error();
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) list.emplace_back(one);
  const unsigned long error = ERR_peek_last_error();  // NOLINT: OpenSSL's type
  const bool at_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (list.empty() || !at_end) {
    return InvalidField(flag, "must hold certificates as PEM, each of them whole",
                        absl::StrCat(list.size(), " that are whole in ", pem.size(), " bytes"));
  }
  return list;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string Text(absl::Time time) { return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone()); }

absl::Status CheckChain(const std::vector<Certificate>& chain, absl::Time now) {
  const absl::Time begin = TimeOf(X509_get0_notBefore(chain[0].get()));
  const absl::Time end = TimeOf(X509_get0_notAfter(chain[0].get()));
  if (now < begin || now >= end) {
    return InvalidField("--tls-cert", "must be valid now", absl::StrCat("from ", Text(begin), " to ", Text(end)));
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (X509_check_issued(chain[i].get(), chain[i - 1].get()) == X509_V_OK) continue;
    return InvalidField("--tls-cert", "must be a chain, each certificate signed by the next",
                        absl::StrCat("number ", i + 1, " of ", chain.size()));
  }
  return absl::OkStatus();
}

// The names of one kind in a certificate's SAN. One with a zero byte could be read as another, and is left out.
void AddNames(const GENERAL_NAMES* all, int type, std::vector<std::string>* names) {
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* one = sk_GENERAL_NAME_value(all, i);
    if (one->type != type) continue;
    const ASN1_IA5STRING* text = type == GEN_URI ? one->d.uniformResourceIdentifier : one->d.dNSName;
    std::string name(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)), ASN1_STRING_length(text));
    if (name.find('\0') == std::string::npos) names->push_back(std::move(name));
  }
}

}  // namespace

absl::StatusOr<ServerCertificate> ServerCertificate::Check(std::string chain, std::string key, std::string client_ca,
                                                           absl::Time now) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Certificate> certificates, ReadCertificates(chain, "--tls-cert"));
  PENSTOCK_RETURN_IF_ERROR(CheckChain(certificates, now));
  const PrivateKey read(PEM_read_bio_PrivateKey(Reader(key).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (read == nullptr) {
    return InvalidField("--tls-key", "must hold a private key as PEM, without a password",
                        absl::StrCat(key.size(), " bytes"));
  }
  const bool fits = X509_check_private_key(certificates[0].get(), read.get()) == 1;
  ERR_clear_error();
  if (!fits) return InvalidField("--tls-key", "must be the key of --tls-cert", "another one");
  if (!client_ca.empty()) PENSTOCK_RETURN_IF_ERROR(ReadCertificates(client_ca, "--tls-client-ca").status());
  const absl::Time end = TimeOf(X509_get0_notAfter(certificates[0].get()));
  return ServerCertificate{std::move(chain), std::move(key), std::move(client_ca), end};
}

absl::StatusOr<PeerCertificate> PeerCertificate::Parse(std::string_view pem) {
  const Certificate certificate(PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) {
    return Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_INVALID", "the certificate can't be read");
  }
  PeerCertificate peer;
  peer.end = TimeOf(X509_get0_notAfter(certificate.get()));
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  if (names != nullptr) {
    AddNames(names.get(), GEN_URI, &peer.names);
    AddNames(names.get(), GEN_DNS, &peer.names);
  }
  return peer;
}

}  // namespace penstock
