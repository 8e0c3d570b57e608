#include "engine/base/check.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace penstock {
namespace {

constexpr int kPollMillis = 50;
constexpr int kMaxPolls = 20;

}  // namespace

void EndBroken(const char* file, int line, const char* condition) {
  std::array<char, 1024> text;
  const int wanted = std::snprintf(text.data(), text.size(), "%s:%d: broken invariant: %s\n", file, line, condition);
  const size_t size = std::min(static_cast<size_t>(std::max(wanted, 0)), text.size() - 1);
  static_assert(sizeof(text) <= PIPE_BUF);  // a pipe that is ready takes it without blocking
  pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  for (int i = 0; i < kMaxPolls; ++i) {
    if (poll(&ready, 1, kPollMillis) <= 0) continue;
    (void)!::write(STDERR_FILENO, text.data(), size);
    break;
  }
  std::abort();
}

}  // namespace penstock
