#pragma once

// "Did you mean ...?"

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// How many single letters must be inserted, removed, changed or swapped with their neighbour to make `b` of `a`.
int EditDistance(std::string_view a, std::string_view b);

// The candidate that is nearest to a mistyped word; "" if none is near.
std::string NearMiss(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace penstock
