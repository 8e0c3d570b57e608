#pragma once

// The next byte from a model's scores.

#include <cstdint>
#include <random>
#include <span>

namespace penstock {

// Draws an index by softmax(scores / temperature); a temperature of 0 or below takes the highest (the first of equals).
// Scores that are not numbers count as the lowest.
int SampleIndex(std::span<const float> scores, double temperature, std::mt19937_64& random);

}  // namespace penstock
