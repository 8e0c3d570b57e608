#pragma once

#include <string_view>

namespace penstock {

// True for an identifier that a client may choose: [a-z]([a-z0-9_-]{0,61}[a-z0-9])?
bool IsResourceId(std::string_view text);

}  // namespace penstock
