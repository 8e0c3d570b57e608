#pragma once

#include <string>

namespace penstock {

// Which instructions LibTorch uses on this processor: "AVX2". Results on another may differ by a rounding.
std::string CpuCapability();

}  // namespace penstock
