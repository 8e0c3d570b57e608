#include "server/ranks/peer_credentials.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/status_macros.h"
#include "server/identity/server_certificate.h"

namespace penstock {
namespace {

struct Contents {
  std::string certificate;
  std::string key;
  std::string authorities;
};

absl::StatusOr<std::string> Read(const std::string& path, const char* flag) {
  absl::StatusOr<std::string> content = RealFileSystem()->Read(path);
  if (content.ok()) return content;
  return InvalidField(flag, "must be a file that can be read for the links between ranks", path);
}

absl::StatusOr<Contents> ReadAll(const PeerFiles& files) {
  Contents contents;
  PENSTOCK_ASSIGN_OR_RETURN(contents.certificate, Read(files.certificate, "--tls-cert"));
  PENSTOCK_ASSIGN_OR_RETURN(contents.key, Read(files.key, "--tls-key"));
  PENSTOCK_ASSIGN_OR_RETURN(contents.authorities, Read(files.authorities, "--tls-client-ca"));
  return contents;
}

}  // namespace

absl::Status CheckPeerFiles(const PeerFiles& files, absl::Time now) {
  PENSTOCK_ASSIGN_OR_RETURN(Contents read, ReadAll(files));
  return ServerCertificate::Check(std::move(read.certificate), std::move(read.key), std::move(read.authorities), now)
      .status();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> PeerServerCredentials(const PeerFiles& files) {
  if (files.certificate.empty()) return grpc::InsecureServerCredentials();
  PENSTOCK_ASSIGN_OR_RETURN(const Contents contents, ReadAll(files));
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = contents.authorities;
  options.pem_key_cert_pairs.push_back({contents.key, contents.certificate});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> PeerChannelCredentials(const PeerFiles& files) {
  if (files.certificate.empty()) return grpc::InsecureChannelCredentials();
  PENSTOCK_ASSIGN_OR_RETURN(const Contents contents, ReadAll(files));
  return grpc::SslCredentials({.pem_root_certs = contents.authorities,
                               .pem_private_key = contents.key,
                               .pem_cert_chain = contents.certificate});
}

}  // namespace penstock
