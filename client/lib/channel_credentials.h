#pragma once

// How a client shows who it is, and knows the daemon: certificates and a bearer token, from files only.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
}  // namespace grpc

namespace penstock {

// Paths of files; all empty: the connection is plaintext.
struct CredentialPaths {
  std::string tls_ca;      // PEM of the authorities that the daemon's certificate is signed by; empty: the machine's
  std::string tls_cert;    // PEM of the client's own certificate, with tls_key
  std::string tls_key;     // PEM of its key, without a password
  std::string token_file;  // holds one bearer token

  bool any() const { return !(tls_ca.empty() && tls_cert.empty() && tls_key.empty() && token_file.empty()); }
};

// Credentials of channels: plaintext if no path is given, TLS otherwise.
//
// Model:     certificates and key are read once, here; the token anew for each call, so that a new one counts at once.
//            A token is sent over TLS only: gRPC asks for it on no other connection.
// Threads:   the result may be shared by channels.
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming "tls-ca", "tls-cert", "tls-key" or "token-file" and the path: a
//            file that can't be read or holds something else, a certificate without its key or the other way round, a
//            key of another certificate, a certificate that has ended. It shows no part of a key or a token.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const CredentialPaths& paths);

}  // namespace penstock
