#pragma once

#include <cstdint>

namespace penstock {

// SplitMix64's finaliser: every bit of the key reaches every bit of the result. Keys of several parts are mixed one after
// another: SplitMix(SplitMix(seed) ^ part).
//
// Source:    Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; constants of Vigna's
//            splitmix64.c.
inline uint64_t SplitMix(uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

}  // namespace penstock
