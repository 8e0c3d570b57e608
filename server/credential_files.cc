#include "server/credential_files.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/http/listen_address.h"

namespace penstock {
namespace {

// No flag of TLS does something alone, and none is left out by mistake.
absl::Status CheckTls(const DaemonOptions& options) {
  if (options.tls_cert.empty()) {
    const std::pair<const char*, const std::string*> others[] = {{"--tls-key", &options.tls_key},
                                                                 {"--tls-client-ca", &options.tls_client_ca},
                                                                 {"--identity-map", &options.identity_map},
                                                                 {"--token-file", &options.token_file}};
    for (const auto& [flag, value] : others) {
      if (!value->empty()) return InvalidField(flag, "needs --tls-cert", *value);
    }
    return absl::OkStatus();
  }
  if (options.tls_key.empty()) return InvalidField("--tls-cert", "needs --tls-key", options.tls_cert);
  if (options.identity_map.empty()) return InvalidField("--tls-cert", "needs --identity-map", options.tls_cert);
  if (options.tls_client_ca.empty() && options.token_file.empty()) {
    return InvalidField("--tls-cert", "needs --tls-client-ca or --token-file: else nobody could call",
                        options.tls_cert);
  }
  if (absl::StartsWith(options.listen, "unix:")) {
    return InvalidField("--listen", "must be HOST:PORT with --tls-cert", options.listen);
  }
  return absl::OkStatus();
}

// Of an address that was checked.
bool IsOnThisHost(const std::string& listen) {
  if (absl::StartsWith(listen, "unix:")) return true;
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(listen, "--listen");
  return address.ok() && address->IsLoopback();
}

}  // namespace

absl::StatusOr<CredentialFiles> CredentialFiles::Open(const DaemonOptions& options, Clock* clock,
                                                      ServerMetrics* metrics) {
  PENSTOCK_RETURN_IF_ERROR(CheckTls(options));
  CredentialFiles files;
  files.followed = std::make_unique<FollowedFiles>(clock, [metrics] {
    if (metrics != nullptr) metrics->credential_files_refused.Add(1);
  });
  Authenticator::Options who;
  if (!options.tls_cert.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(
        files.certificates,
        CertificateFiles::Create(
            {.certificate = options.tls_cert, .key = options.tls_key, .client_ca = options.tls_client_ca},
            files.followed.get(), clock, [metrics](absl::Time end) {
              if (metrics != nullptr) metrics->certificate_end.Set(absl::ToDoubleSeconds(end - absl::UnixEpoch()));
            }));
    who.identity_map = options.identity_map;
    who.token_file = options.token_file;
    who.anyone.role = Role::kViewer;  // in plaintext there is only the health port then
  } else if (!IsOnThisHost(options.listen)) {
    who.anyone.role = Role::kInfer;
  }
  PENSTOCK_ASSIGN_OR_RETURN(files.authenticator, Authenticator::Create(who, files.followed.get(), clock));
  return files;
}

}  // namespace penstock
