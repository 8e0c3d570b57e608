#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace penstock {

// What ranks show each other where the links between them are encrypted: each a certificate, and each wants one.
struct PeerFiles {
  std::string certificate;  // empty: plaintext
  std::string key;
  std::string authorities;  // of the other ranks' certificates
};

// Whether they can be read and fit together now.
//
// Fails:     FAILED_PRECONDITION / FIELD_INVALID naming the flag of a file that can't be read; as
//            ServerCertificate::Check().
absl::Status CheckPeerFiles(const PeerFiles& files, absl::Time now);

// Read anew for each connection, or generation of the group, so that renewed files count.
//
// Fails:     FAILED_PRECONDITION / FIELD_INVALID naming the flag of a file that can't be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> PeerServerCredentials(const PeerFiles& files);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> PeerChannelCredentials(const PeerFiles& files);

}  // namespace penstock
