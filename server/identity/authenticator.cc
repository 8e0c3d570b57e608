#include "server/identity/authenticator.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/identity/followed_files.h"

namespace penstock {
namespace {

constexpr size_t kMaxPeers = 1024;
constexpr size_t kMaxTokenBytes = 4096;
constexpr std::string_view kBearer = "Bearer ";

absl::Status Invalid(std::string_view message) {
  return Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_INVALID", message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Create(const Options& options, FollowedFiles* files,
                                                                     Clock* clock) {
  auto made = std::make_unique<Authenticator>(options.anyone, clock);
  Authenticator* const into = made.get();
  if (!options.identity_map.empty()) {
    made->knows_callers_ = true;
    const auto take = [into, path = options.identity_map](const std::vector<std::string>& contents) -> absl::Status {
      PENSTOCK_ASSIGN_OR_RETURN(IdentityMap map, IdentityMap::Parse(contents[0], path));
      into->map_.Set(std::move(map));
      return absl::OkStatus();
    };
    PENSTOCK_RETURN_IF_ERROR(files->Follow("--identity-map", {options.identity_map}, take));
  }
  if (!options.token_file.empty()) {
    const auto take = [into, path = options.token_file](const std::vector<std::string>& contents) -> absl::Status {
      PENSTOCK_ASSIGN_OR_RETURN(TokenFile tokens, TokenFile::Parse(contents[0], path));
      into->tokens_.Set(std::move(tokens));
      return absl::OkStatus();
    };
    PENSTOCK_RETURN_IF_ERROR(files->Follow("--token-file", {options.token_file}, take));
  }
  return made;
}

absl::StatusOr<Identity> Authenticator::Authenticate(const Shown& shown) const {
  if (!shown.tls) {
    Identity identity = anyone_;
    if (!shown.name.empty()) identity.name = std::string(shown.name);
    return identity;
  }
  if (shown.authorization.has_value()) return ByToken(*shown.authorization);
  if (!shown.certificate.empty()) return ByCertificate(shown.certificate);
  return Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_MISSING",
               "the call has neither a client certificate nor a bearer token");
}

absl::StatusOr<Identity> Authenticator::ByToken(std::string_view authorization) const {
  const bool bearer =
      authorization.size() > kBearer.size() && authorization.size() <= kMaxTokenBytes &&
      absl::EqualsIgnoreCase(std::string(authorization.substr(0, kBearer.size())), std::string(kBearer));
  if (!bearer) return Invalid("the header authorization must be Bearer and a token");
  const std::shared_ptr<const TokenFile> tokens = tokens_.Get();
  if (tokens == nullptr) return Invalid("this daemon takes no tokens");
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name,
                            tokens->NameOf(authorization.substr(kBearer.size()), clock_->WallNow()));
  const std::shared_ptr<const IdentityMap> map = map_.Get();
  const Identity* found = map == nullptr ? nullptr : map->Find(name);
  if (found == nullptr) return Invalid(absl::StrCat("the identity map does not have ", name));
  return *found;
}

absl::StatusOr<Identity> Authenticator::ByCertificate(std::string_view pem) const {
  PENSTOCK_ASSIGN_OR_RETURN(const PeerPointer peer, Read(pem));
  if (clock_->WallNow() >= peer->end) {
    return Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_EXPIRED",
                 absl::StrCat("the certificate has ended at ",
                              absl::FormatTime(absl::RFC3339_sec, peer->end, absl::UTCTimeZone())));
  }
  if (const std::shared_ptr<const IdentityMap> map = map_.Get(); map != nullptr) {
    for (const std::string& name : peer->names) {
      if (const Identity* found = map->Find(name); found != nullptr) return *found;
    }
  }
  return Invalid("the identity map has none of the certificate's URIs and DNS names");
}

absl::StatusOr<Authenticator::PeerPointer> Authenticator::Read(std::string_view pem) const {
  {
    absl::MutexLock lock(&mu_);
    if (const auto found = peers_.find(pem); found != peers_.end()) return found->second;
  }
  PENSTOCK_ASSIGN_OR_RETURN(PeerCertificate parsed, PeerCertificate::Parse(pem));
  auto peer = std::make_shared<const PeerCertificate>(std::move(parsed));
  std::map<std::string, PeerPointer, std::less<>> old;  // goes after the lock
  absl::MutexLock lock(&mu_);
  if (peers_.size() >= kMaxPeers) old.swap(peers_);
  return peers_.emplace(std::string(pem), std::move(peer)).first->second;
}

std::optional<Role> Authenticator::RoleOf(std::string_view name) const {
  const std::shared_ptr<const IdentityMap> map = map_.Get();
  const Identity* const found = map == nullptr ? nullptr : map->Find(name);
  return found == nullptr ? std::nullopt : std::make_optional(found->role);
}

}  // namespace penstock
