#pragma once

// How a caller names a result: pipelines/{pipeline}/handles/{epoch}-{random}.

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"

namespace penstock {

// The identifier of a handle: the epoch in which it was made, as 8 hex digits, and 128 secret bits.
struct HandleId {
  Epoch epoch;
  uint64_t high = 0;
  uint64_t low = 0;

  auto operator<=>(const HandleId&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const HandleId& id) {
    return H::combine(std::move(state), id.epoch, id.high, id.low);
  }
};

// A new identifier from the kernel's secure generator.
HandleId RandomHandleId(Epoch epoch);

std::string ToString(const HandleId& id);

// A handle's whole name.
struct HandleName {
  std::string pipeline;
  HandleId id;

  auto operator<=>(const HandleName&) const = default;

  // Fails:     INVALID_ARGUMENT / NAME_INVALID with `field` and the value.
  static absl::StatusOr<HandleName> Parse(std::string_view text, std::string_view field = "name");
};

std::string ToString(const HandleName& name);

}  // namespace penstock
