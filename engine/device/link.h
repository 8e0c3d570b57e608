#pragma once

#include <string>

#include "engine/base/ids.h"

namespace penstock {

// The way between two processes, as far as it is known.
//
// Units:     seconds from the end of sending a message that has no bytes until it is there; bytes per second of a large
//            message after that. Both directions alike.
struct Link {
  Rank one;  // the lower of the two
  Rank other;
  bool measured = false;
  double latency_seconds = 0;  // 0, as the other figure, where it was not measured
  double bytes_per_second = 0;
  std::string problem = {};  // why it was not measured

  bool operator==(const Link&) const = default;
};

}  // namespace penstock
