#include "engine/ucx/socket_silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace penstock {
namespace {

constexpr int kDeepest = 4;  // epoll descriptors in each other: the kernel allows five

void Limit(int descriptor, int milliseconds, int depth) {
  // Whatever is no TCP connection refuses it.
  if (setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds)) == 0) return;
  if (depth == kDeepest) return;
  std::ifstream facts(absl::StrCat("/proc/self/fdinfo/", descriptor));
  for (std::string line; std::getline(facts, line);) {
    int watched = 0;
    if (std::sscanf(line.c_str(), "tfd: %d", &watched) == 1) Limit(watched, milliseconds, depth + 1);
  }
}

}  // namespace

void LimitSilence(int epoll_descriptor, int milliseconds) { Limit(epoll_descriptor, milliseconds, 0); }

}  // namespace penstock
