#pragma once

// The files of a TLS listener's certificate.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/identity/published.h"
#include "server/identity/server_certificate.h"

namespace penstock {

class Clock;
class FollowedFiles;

// The certificate that new connections get, and the authorities of clients.
//
// Model:     the three files are one group: a set that does not fit together, half of a renewal for example, is refused
//            as a whole, and the last good one goes on.
// Owns:      what was published last. FollowedFiles and Clock outlive it.
// Threads:   current() from any thread.
// Fails:     Create(): as ServerCertificate::Check() and FollowedFiles::Follow().
class CertificateFiles {
 public:
  struct Paths {
    std::string certificate;
    std::string key;
    std::string client_ca;  // empty: no client certificates
  };

  // `told` hears of the end of each certificate that is published, the first one too; it may be null.
  static absl::StatusOr<std::shared_ptr<const CertificateFiles>> Create(const Paths& paths, FollowedFiles* files,
                                                                        Clock* clock,
                                                                        std::function<void(absl::Time end)> told = {});

  // Never null; another object after each change.
  std::shared_ptr<const ServerCertificate> current() const { return published_.Get(); }

 private:
  CertificateFiles() = default;
  Published<ServerCertificate> published_;
};

}  // namespace penstock
