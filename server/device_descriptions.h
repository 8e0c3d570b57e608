#pragma once

#include <vector>

#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/observe/metrics.h"

namespace penstock {

// What a rank tells of its devices on its pages: by the names that lanes on them have, a limit for each, and what an
// accelerator's allocator counts whenever somebody looks.
std::vector<DeviceDescription> DescribeDevices(const std::vector<Device>& devices, Rank self);

}  // namespace penstock
