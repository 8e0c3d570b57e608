#include <cstdint>

#include "engine/base/memory_bound.h"
#include "engine/device/device.h"

namespace penstock {

int64_t MachineMemoryBytes() {
  static const int64_t bytes = MemoryBoundBytes();
  return bytes;
}

}  // namespace penstock
