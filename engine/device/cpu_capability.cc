#include "engine/device/cpu_capability.h"

#include <ATen/Version.h>

namespace penstock {

std::string CpuCapability() { return at::get_cpu_capability(); }

}  // namespace penstock
