#pragma once

#include <cstddef>
#include <string_view>

namespace penstock {

// The length in bytes of the UTF-8 sequence at the start of a text that is not empty: 1 to 4. Returns 0 if it is not
// valid (RFC 3629: overlong, surrogate, beyond U+10FFFF, cut short) or is a control character of ASCII or Latin 1.
size_t PrintableLength(std::string_view text);

// Whether a text is valid UTF-8 (RFC 3629), as every text of a protobuf message must be. Control characters are.
bool IsUtf8(std::string_view text);

}  // namespace penstock
