#pragma once

// What layers say about the values that they hand to layers further on, past those between.

#include <compare>
#include <string>
#include <vector>

namespace penstock {

// A skip's name in its namespace; the empty namespace is the default one.
struct SkipName {
  std::string skip_namespace;
  std::string name;

  auto operator<=>(const SkipName&) const = default;
};

// What one layer stashes and pops, in the order in which it declares them.
struct SkipDeclaration {
  std::vector<SkipName> stashes;
  std::vector<SkipName> pops;
};

}  // namespace penstock
