#pragma once

// What a TLS listener shows and whom it trusts, checked before anybody uses it; and what a client has shown.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace penstock {

// A server's certificate with its key, and the authorities of clients, all as PEM.
//
// Fails:     Check(): INVALID_ARGUMENT / FIELD_INVALID naming the flag: text that is no PEM or breaks off, a chain whose
//            certificates are not each signed by the next, a certificate that has ended, a key that is encrypted or of
//            another certificate. It shows neither a path nor a part of a key.
struct ServerCertificate {
  std::string chain;
  std::string key;
  std::string client_ca;  // empty: no client certificates
  absl::Time end;         // of the server's own certificate

  static absl::StatusOr<ServerCertificate> Check(std::string chain, std::string key, std::string client_ca,
                                                 absl::Time now);
};

// What the certificate of a client says of it. TLS has checked who has signed it.
struct PeerCertificate {
  std::vector<std::string> names;  // of its SAN: URIs, then DNS names, each in their order
  absl::Time end;

  // Fails: UNAUTHENTICATED / CREDENTIAL_INVALID for what is no certificate.
  static absl::StatusOr<PeerCertificate> Parse(std::string_view pem);
};

}  // namespace penstock
