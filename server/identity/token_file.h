#pragma once

// The file of bearer tokens: their digests, never they themselves.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace penstock {

// Tokens by their SHA-256.
//
// Model:     a line per token: 64 hex digits, the name of who has it and, where it ends, an instant as RFC 3339 writes
//            it; blanks stand between them, a # at the start of a word begins a comment. Several tokens may have one
//            name, so that a new one can be given out before the old one is taken away.
// Threads:   a plain value, constant once it is parsed.
// Fails:     Parse(): INVALID_ARGUMENT / FIELD_INVALID whose field is FILE:LINE. It never shows a digest.
//            NameOf(): UNAUTHENTICATED / CREDENTIAL_INVALID for a token that no line has, CREDENTIAL_EXPIRED.
// Example:   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  trainer  2027-01-01T00:00:00Z
class TokenFile {
 public:
  static absl::StatusOr<TokenFile> Parse(std::string_view text, std::string_view file);

  // Whose token it is at an instant. Every line is compared, wholly: the time tells nothing of what the file has.
  absl::StatusOr<std::string> NameOf(std::string_view token, absl::Time now) const;
  size_t size() const { return tokens_.size(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Token {
    Digest digest;
    std::string name;
    absl::Time end = absl::InfiniteFuture();
  };

  static bool DigestOf(std::string_view token, Digest* digest);
  std::vector<Token> tokens_;
};

}  // namespace penstock
