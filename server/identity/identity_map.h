#pragma once

// The file that says who is who.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/identity/identity.h"

namespace penstock {

// Identities by name.
//
// Model:     a line per identity: name, role and pattern of pipelines, with blanks between them; what follows a # at the
//            start of a word is a comment. The name is that of a token, or a URI or DNS name of a certificate.
// Threads:   a plain value, constant once it is parsed.
// Fails:     Parse(): INVALID_ARGUMENT / FIELD_INVALID whose field is FILE:LINE, naming the value.
// Example:   spiffe://example.org/trainer  train  team-a-*
class IdentityMap {
 public:
  static absl::StatusOr<IdentityMap> Parse(std::string_view text, std::string_view file);

  // Null: nobody is called so.
  const Identity* Find(std::string_view name) const;
  size_t size() const { return identities_.size(); }

 private:
  std::map<std::string, Identity, std::less<>> identities_;
};

}  // namespace penstock
