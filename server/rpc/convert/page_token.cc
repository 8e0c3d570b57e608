#include "server/rpc/convert/page_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr size_t kSealBytes = 16;
constexpr size_t kTimeBytes = 8;

absl::Status Invalid(std::string_view problem, std::string_view token) {
  return Error(absl::StatusCode::kInvalidArgument, "PAGE_TOKEN_INVALID",
               "page_token: " + std::string(problem) + ", got " + Shortened(token))
      .With("field", "page_token")
      .With("value", Shortened(token));
}

}  // namespace

PageTokens::PageTokens(Clock* clock) : clock_(clock), key_(32, '\0') {
  PENSTOCK_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(key_.data()), static_cast<int>(key_.size())) == 1);
}

std::string PageTokens::Seal(std::string_view scope, std::string_view body) const {
  // The length of the scope keeps ("ab", "c") and ("a", "bc") apart.
  const std::string text = absl::StrCat(scope.size(), ":", absl::string_view(scope.data(), scope.size()),
                                        absl::string_view(body.data(), body.size()));
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  PENSTOCK_CHECK(HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                      reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size) != nullptr);
  return std::string(reinterpret_cast<const char*>(mac), kSealBytes);
}

std::string PageTokens::Make(std::string_view scope, std::string_view place) const {
  const int64_t end = clock_->NowNanos() + absl::ToInt64Nanoseconds(kLife);
  std::string body(kTimeBytes, '\0');
  std::memcpy(body.data(), &end, kTimeBytes);
  body += place;
  return absl::WebSafeBase64Escape(Seal(scope, body) + body);
}

absl::StatusOr<std::string> PageTokens::Read(std::string_view scope, std::string_view token) const {
  if (token.empty()) return std::string();
  std::string bytes;
  if (token.size() > 1024 || !absl::WebSafeBase64Unescape(absl::string_view(token.data(), token.size()), &bytes) ||
      bytes.size() < kSealBytes + kTimeBytes) {
    return Invalid("is not one of this server", token);
  }
  const std::string body = bytes.substr(kSealBytes);
  const std::string seal = Seal(scope, body);
  if (CRYPTO_memcmp(seal.data(), bytes.data(), kSealBytes) != 0) {
    return Invalid("is not one of this server, or belongs to another list", token);
  }
  int64_t end = 0;
  std::memcpy(&end, body.data(), kTimeBytes);
  if (clock_->NowNanos() > end) return Invalid("is older than an hour", token);
  return body.substr(kTimeBytes);
}

absl::StatusOr<int> CheckedPageSize(int32_t page_size) {
  if (page_size < 0 || page_size > 1000) {
    return InvalidField("page_size", "must be between 0 and 1000", absl::StrCat(page_size));
  }
  return page_size == 0 ? 50 : page_size;
}

}  // namespace penstock
