#include "client/lib/channel_credentials.h"

#include <grpcpp/grpcpp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/read_to_end.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 20;
constexpr size_t kMaxTokenBytes = 4096;  // headers have 8 KiB in all

using Bio = std::unique_ptr<BIO, decltype(&BIO_free_all)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using PrivateKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Reader(const std::string& pem) { return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all}; }

// Without it OpenSSL asks the terminal for the password of an encrypted key.
int NoPassword(char*, int, int, void*) { return -1; }

Certificate FirstCertificate(const std::string& pem) {
  return {PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassword, nullptr), X509_free};
}

// Empty for an empty path.
absl::StatusOr<std::string> Read(std::string_view field, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> content = ReadToEnd(path, kMaxFileBytes);
  if (content.ok()) return content;
  return InvalidField(field, absl::StrCat("must name a file that can be read (", content.status().message(), ")"),
                      path);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string content, Read("token-file", path));
  std::string token(absl::StripAsciiWhitespace(content));
  const bool good = !token.empty() && token.size() <= kMaxTokenBytes &&
                    std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (good) return token;
  return InvalidField("token-file",
                      absl::StrCat("must hold one token of at most ", kMaxTokenBytes, " printable characters (it has ",
                                   content.size(), " bytes)"),
                      path);
}

absl::Status CheckAuthorities(const std::string& pem, const std::string& path) {
  const bool good = FirstCertificate(pem) != nullptr;
  ERR_clear_error();
  return good ? absl::OkStatus() : InvalidField("tls-ca", "must hold certificates as PEM", path);
}

// gRPC itself would say of a pair that does not fit only that no connection can be made.
absl::Status CheckPair(const std::string& chain, const std::string& key, const CredentialPaths& paths) {
  const Certificate certificate = FirstCertificate(chain);
  const PrivateKey read(PEM_read_bio_PrivateKey(Reader(key).get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  const bool fits = certificate != nullptr && read != nullptr && X509_check_private_key(certificate.get(), read.get());
  ERR_clear_error();
  if (certificate == nullptr) return InvalidField("tls-cert", "must hold a certificate as PEM", paths.tls_cert);
  if (read == nullptr) {
    return InvalidField("tls-key", "must hold a private key as PEM, without a password", paths.tls_key);
  }
  if (!fits) return InvalidField("tls-key", absl::StrCat("must be the key of ", paths.tls_cert), paths.tls_key);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return InvalidField("tls-cert", "must not have ended", paths.tls_cert);
  }
  return absl::OkStatus();
}

// Adds the token to each call, as the file has it then. While the file has none, for somebody writes it, the last one
// counts.
class Bearer final : public grpc::MetadataCredentialsPlugin {
 public:
  Bearer(std::string path, std::string token) : path_(std::move(path)), last_(std::move(token)) {}

  bool IsBlocking() const override { return false; }  // a small file
  const char* GetType() const override { return "penstock-token"; }

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    absl::StatusOr<std::string> token = ReadToken(path_);
    absl::MutexLock lock(&mu_);
    if (token.ok()) last_ = *std::move(token);
    metadata->emplace("authorization", "Bearer " + last_);
    return grpc::Status::OK;
  }

 private:
  const std::string path_;
  absl::Mutex mu_;
  std::string last_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const CredentialPaths& paths) {
  if (!paths.any()) return grpc::InsecureChannelCredentials();
  if (paths.tls_key.empty() && !paths.tls_cert.empty())
    return InvalidField("tls-cert", "needs tls-key", paths.tls_cert);
  if (paths.tls_cert.empty() && !paths.tls_key.empty()) return InvalidField("tls-key", "needs tls-cert", paths.tls_key);
  grpc::SslCredentialsOptions options;
  PENSTOCK_ASSIGN_OR_RETURN(options.pem_root_certs, Read("tls-ca", paths.tls_ca));
  PENSTOCK_ASSIGN_OR_RETURN(options.pem_cert_chain, Read("tls-cert", paths.tls_cert));
  PENSTOCK_ASSIGN_OR_RETURN(options.pem_private_key, Read("tls-key", paths.tls_key));
  if (!paths.tls_ca.empty()) PENSTOCK_RETURN_IF_ERROR(CheckAuthorities(options.pem_root_certs, paths.tls_ca));
  if (!paths.tls_cert.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckPair(options.pem_cert_chain, options.pem_private_key, paths));
  }
  std::shared_ptr<grpc::ChannelCredentials> made = grpc::SslCredentials(options);
  if (paths.token_file.empty()) return made;
  PENSTOCK_ASSIGN_OR_RETURN(std::string token, ReadToken(paths.token_file));
  return grpc::CompositeChannelCredentials(
      made, grpc::MetadataCredentialsFromPlugin(std::make_unique<Bearer>(paths.token_file, std::move(token))));
}

}  // namespace penstock
