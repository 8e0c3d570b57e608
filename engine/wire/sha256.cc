#include "engine/wire/sha256.h"

#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"

namespace penstock {
namespace {

constexpr std::string_view kPrefix = "sha256:";
constexpr size_t kHexDigits = 64;

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  PENSTOCK_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::Update(std::string_view bytes) {
  PENSTOCK_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  PENSTOCK_CHECK(EVP_DigestFinal_ex(context_, digest, &size) == 1);
  return absl::StrCat(absl::string_view(kPrefix.data(), kPrefix.size()),
                      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size)));
}

std::string Sha256::Of(std::string_view bytes) {
  Sha256 digest;
  digest.Update(bytes);
  return digest.Finish();
}

bool Sha256::IsDigest(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kPrefix.size() + kHexDigits && text.substr(0, kPrefix.size()) == kPrefix &&
         std::all_of(text.begin() + kPrefix.size(), text.end(), is_hex);
}

}  // namespace penstock
