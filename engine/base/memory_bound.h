#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// How many bytes of memory this process may use: the machine's, or fewer where a control group that it is in, or one
// above that, bounds them. Both versions of control groups are looked at, as a service and as a container see them.
//
// `root` is the folder in which /proc and /sys stand; usually only tests set it.
int64_t MemoryBoundBytes(const std::string& root = "");

}  // namespace penstock
