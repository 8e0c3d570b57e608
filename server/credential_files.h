#pragma once

// The files that say who is who, as the daemon's options name them.

#include <memory>

#include "absl/status/statusor.h"
#include "engine/observe/metrics.h"
#include "server/daemon_options.h"
#include "server/identity/authenticator.h"
#include "server/identity/certificate_files.h"
#include "server/identity/followed_files.h"

namespace penstock {

// Everything that is read of them, and the thread that reads it again.
//
// Owns:      all of it; the Clock and the metrics (or null) outlive it. Calls that are under way use the authenticator.
// Fails:     Open(): INVALID_ARGUMENT / FIELD_INVALID for flags that need others; what a file fails with, naming the
//            flag, or file and line.
struct CredentialFiles {
  std::unique_ptr<Authenticator> authenticator;
  std::shared_ptr<const CertificateFiles> certificates;  // null: the API is plaintext
  std::unique_ptr<FollowedFiles> followed;               // last: it hands on to the others

  // Without --tls-cert nobody is asked who he is: on this host everybody is admin, on another address (--insecure) has
  // the role infer. Call followed->Start() to read again what changes.
  static absl::StatusOr<CredentialFiles> Open(const DaemonOptions& options, Clock* clock,
                                              ServerMetrics* metrics = nullptr);
};

}  // namespace penstock
