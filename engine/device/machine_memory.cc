#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "engine/device/device.h"

namespace penstock {

int64_t MachineMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  // Control groups, second version, as a container sees its own. "max" does not read as a number: no limit.
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  if (int64_t limit = 0; limit_file >> limit && limit > 0) bytes = std::min(bytes, limit);
  return bytes;
}

}  // namespace penstock
