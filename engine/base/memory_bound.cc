#include "engine/base/memory_bound.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace penstock {
namespace {

// The number in a file, or `otherwise`. "max", as the second version writes no limit, is no number; the first writes a
// number that is larger than any machine.
int64_t ReadLimit(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t limit = 0;
  return file >> limit && limit > 0 ? limit : otherwise;
}

// The least limit of a group and all above it. `tree` is where the hierarchy stands; a container that sees its own
// group as the root finds its limit there.
int64_t LeastLimit(const std::string& tree, std::string group, const std::string& file, int64_t bytes) {
  while (true) {
    if (!group.empty() && group.back() == '/') group.pop_back();
    bytes = std::min(bytes, ReadLimit(tree + group + "/" + file, bytes));
    if (group.empty()) return bytes;
    group.resize(group.rfind('/'));
  }
}

// Whether a list of controllers, "cpu,memory", has memory in it.
bool HasMemory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

}  // namespace

int64_t MemoryBoundBytes(const std::string& root) {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  const std::string tree = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");  // lines HIERARCHY:CONTROLLERS:GROUP
  for (std::string line; std::getline(groups, line);) {
    const size_t controllers = line.find(':') + 1;
    const size_t group = controllers == 0 ? 0 : line.find(":/", controllers);
    if (controllers == 0 || group == std::string::npos) continue;
    const std::string listed = line.substr(controllers, group - controllers);
    const std::string path = line.substr(group + 1);
    if (listed.empty()) bytes = LeastLimit(tree, path, "memory.max", bytes);
    if (HasMemory(listed)) bytes = LeastLimit(tree + "/memory", path, "memory.limit_in_bytes", bytes);
  }
  // Where the groups can't be read, at least what stands at the root.
  bytes = std::min(bytes, ReadLimit(tree + "/memory.max", bytes));
  return std::min(bytes, ReadLimit(tree + "/memory/memory.limit_in_bytes", bytes));
}

}  // namespace penstock
