#pragma once

// JSON that readers take, each in its own way.

#include <string>
#include <string_view>

namespace penstock {

// What is wrong with a text although it is JSON, in words: an object that has a name twice, of which readers keep one
// value; an integer that no 64 bits hold, which they round. Empty: neither, or no JSON.
std::string JsonFault(std::string_view text);

}  // namespace penstock
