#include "client/cli/stop_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "engine/base/check.h"

namespace penstock {

StopSignal::StopSignal() : stop_(eventfd(0, EFD_CLOEXEC)) { PENSTOCK_CHECK(stop_ >= 0); }

StopSignal::~StopSignal() { ::close(stop_); }

void StopSignal::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto told = ::write(stop_, &one, sizeof(one));
}

bool StopSignal::Wait(int descriptor, short events, int milliseconds) const {
  pollfd waited[] = {{descriptor, events, 0}, {stop_, POLLIN, 0}};
  while (::poll(waited, 2, milliseconds) < 0) PENSTOCK_CHECK(errno == EINTR);
  return waited[1].revents == 0;
}

}  // namespace penstock
