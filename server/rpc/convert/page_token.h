#pragma once

// Where a list goes on: opaque, authenticated, bound to its filter, good for an hour.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"

namespace penstock {

// Makes and reads page tokens.
//
// Model:     A token is the place, the time of its end, and an HMAC-SHA256 over both, the method, the
//            caller and the filter, under a key that lives as long as the process.
// Threads:   Any; immutable. The Clock must outlive it.
// Fails:     INVALID_ARGUMENT / PAGE_TOKEN_INVALID for a token that is foreign, changed, of another
//            list, or too old.
class PageTokens {
 public:
  static constexpr absl::Duration kLife = absl::Hours(1);

  explicit PageTokens(Clock* clock);

  // `scope` binds the token: method, caller and filter.
  std::string Make(std::string_view scope, std::string_view place) const;
  // The place; an empty token is the beginning, an empty place.
  absl::StatusOr<std::string> Read(std::string_view scope, std::string_view token) const;

 private:
  std::string Seal(std::string_view scope, std::string_view body) const;

  Clock* const clock_;
  std::string key_;
};

// The number of entries that a page may have: 0 means 50.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID unless within [0, 1000].
absl::StatusOr<int> CheckedPageSize(int32_t page_size);

}  // namespace penstock
