#include "server/identity/token_file.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "server/identity/identity.h"
#include "server/identity/line_words.h"

namespace penstock {
namespace {

bool IsHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool TokenFile::DigestOf(std::string_view token, Digest* digest) {
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);  // looked up once: that takes longest
  unsigned int size = 0;
  return sha256 != nullptr && EVP_Digest(token.data(), token.size(), digest->data(), &size, sha256, nullptr) == 1;
}

absl::StatusOr<TokenFile> TokenFile::Parse(std::string_view text, std::string_view file) {
  TokenFile parsed;
  const auto take = [&](const std::vector<std::string_view>& words, int number) -> absl::Status {
    const std::string field = absl::StrCat(std::string(file), ":", number);
    if (words.size() < 2 || words.size() > 3) {
      return InvalidField(field, "must have a SHA-256, a name and, if the token ends, an instant",
                          absl::StrCat(words.size(), " words"));
    }
    Token token;
    const std::string_view hex = words[0];
    // What stands there may be a token itself, by mistake: it must not get into a log.
    if (hex.size() != 64 || !std::all_of(hex.begin(), hex.end(), IsHex)) {
      return InvalidField(field, "must begin with a SHA-256 of 64 hex digits", absl::StrCat(hex.size(), " characters"));
    }
    const std::string bytes = absl::HexStringToBytes(std::string(hex));
    std::copy(bytes.begin(), bytes.end(), token.digest.begin());
    PENSTOCK_RETURN_IF_ERROR(CheckIdentityName(words[1], field));
    token.name = std::string(words[1]);
    std::string problem;
    if (words.size() == 3 && !absl::ParseTime(absl::RFC3339_full, std::string(words[2]), &token.end, &problem)) {
      return InvalidField(field, "must end with an instant as 2027-01-01T00:00:00Z",
                          std::string(words[2].substr(0, 64)));
    }
    for (const Token& other : parsed.tokens_) {
      if (other.digest == token.digest) return InvalidField(field, "must not have a token again", token.name);
    }
    parsed.tokens_.push_back(std::move(token));
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachLine(text, take));
  return parsed;
}

absl::StatusOr<std::string> TokenFile::NameOf(std::string_view token, absl::Time now) const {
  Digest digest;
  if (!DigestOf(token, &digest)) return Bug("a credential", "no SHA-256");
  const Token* found = nullptr;
  for (const Token& one : tokens_) {
    if (CRYPTO_memcmp(one.digest.data(), digest.data(), digest.size()) == 0) found = &one;
  }
  if (found == nullptr) {
    return Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_INVALID", "the token is not known");
  }
  if (now >= found->end) {
    return Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_EXPIRED",
                 absl::StrCat("the token of ", found->name, " has ended at ",
                              absl::FormatTime(absl::RFC3339_sec, found->end, absl::UTCTimeZone())))
        .With("identity", found->name);
  }
  return found->name;
}

}  // namespace penstock
