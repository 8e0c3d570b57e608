#pragma once

#include <cstdint>

namespace penstock {

// What a request of a kind may have, in bytes.
inline constexpr int64_t kControlMessageBytes = int64_t{64} << 10;
inline constexpr int64_t kSpecificationMessageBytes = int64_t{1} << 20;
inline constexpr int64_t kWorkMessageBytes = int64_t{4} << 20;

}  // namespace penstock
