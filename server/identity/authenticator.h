#pragma once

// From what a call shows to who calls.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/identity/identity.h"
#include "server/identity/identity_map.h"
#include "server/identity/published.h"
#include "server/identity/server_certificate.h"
#include "server/identity/token_file.h"

namespace penstock {

class Clock;
class FollowedFiles;

// Says who calls, by the files as they are now.
//
// Model:     On a plaintext connection nobody is asked: a caller has the name that it gives itself, and what `anyone`
//            may. Under TLS a bearer token counts, or, in a call without one, the client's certificate: the first
//            of its SAN's URIs and DNS names that the map has. Expiry, token and line are looked at for each call: a
//            connection outlives them.
// Owns:      what the files held last, and the certificates that it has read lately. The Clock outlives it, and it the
//            thread of FollowedFiles, which hands it what changes.
// Threads:   Authenticate() from any thread; it touches no file.
// Fails:     Create(): as the parsers and FollowedFiles::Follow(). Authenticate(): UNAUTHENTICATED / CREDENTIAL_MISSING,
//            CREDENTIAL_INVALID or CREDENTIAL_EXPIRED.
class Authenticator {
 public:
  struct Options {
    std::string identity_map;  // a path; empty: only plaintext is spoken
    std::string token_file;    // a path; empty: no tokens
    Identity anyone = {};      // who a caller in plaintext is, but for its name
  };
  // What a call shows.
  struct Shown {
    bool tls = false;
    std::string_view certificate = {};                   // as PEM; empty: none
    std::optional<std::string_view> authorization = {};  // the header; only under TLS
    std::string_view name = {};                          // that a caller gives itself; only in plaintext
  };

  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(const Options& options, FollowedFiles* files,
                                                               Clock* clock);
  // Where everything is plaintext: no file, nothing can fail.
  Authenticator(Identity anyone, Clock* clock) : anyone_(std::move(anyone)), clock_(clock) {}

  absl::StatusOr<Identity> Authenticate(const Shown& shown) const;
  // What somebody may do at present; nothing for a name that the map does not have.
  std::optional<Role> RoleOf(std::string_view name) const;
  // Whether there may be somebody of a name: one that the map has, or, where everything is plaintext, any at all.
  bool MayExist(std::string_view name) const { return !knows_callers_ || RoleOf(name).has_value(); }
  // False where everything is plaintext: then a caller shows nothing but a name.
  bool knows_callers() const { return knows_callers_; }

 private:
  using PeerPointer = std::shared_ptr<const PeerCertificate>;

  absl::StatusOr<Identity> ByToken(std::string_view authorization) const;
  absl::StatusOr<Identity> ByCertificate(std::string_view pem) const;
  // Read once for the calls of a connection, and of those that show the same.
  absl::StatusOr<PeerPointer> Read(std::string_view pem) const ABSL_LOCKS_EXCLUDED(mu_);

  const Identity anyone_;
  bool knows_callers_ = false;  // constant after Create()
  Clock* const clock_;
  Published<IdentityMap> map_;
  Published<TokenFile> tokens_;

  mutable absl::Mutex mu_;
  mutable std::map<std::string, PeerPointer, std::less<>> peers_ ABSL_GUARDED_BY(mu_);  // by PEM
};

}  // namespace penstock
