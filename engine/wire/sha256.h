#pragma once

#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace penstock {

// The digest of bytes that come piece by piece, as it is written on the wire: "sha256:" and 64 hex digits.
//
// Threads:   one at a time.
// Lifecycle: Update() at will, Finish() once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Update(std::string_view bytes);
  std::string Finish();

  // Of bytes that are all there.
  static std::string Of(std::string_view bytes);
  // Whether a text has this form.
  static bool IsDigest(std::string_view text);

 private:
  evp_md_ctx_st* const context_;
};

}  // namespace penstock
