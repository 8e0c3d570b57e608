#include "server/peer/group.h"

#include <sys/random.h>

#include <cerrno>

#include "engine/base/check.h"

namespace penstock {

std::array<char, 16> RandomKey() {
  std::array<char, 16> key;
  for (size_t done = 0; done < key.size();) {
    const ssize_t got = ::getrandom(key.data() + done, key.size() - done, 0);
    PENSTOCK_CHECK(got > 0 || errno == EINTR);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return key;
}

}  // namespace penstock
