#pragma once

// What layers say about the values that they hand to layers further on, past those between.

#include <compare>
#include <string>

namespace penstock {

// A skip's name in its namespace; the empty namespace is the default one.
struct SkipName {
  std::string skip_namespace;
  std::string name;

  auto operator<=>(const SkipName&) const = default;
};

}  // namespace penstock
