#include "client/cli/stoppable_input.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "engine/base/check.h"

namespace penstock {

StoppableInput::StoppableInput(int descriptor) : descriptor_(descriptor), stop_(eventfd(0, EFD_CLOEXEC)) {
  PENSTOCK_CHECK(stop_ >= 0);
}

StoppableInput::~StoppableInput() { ::close(stop_); }

void StoppableInput::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto told = ::write(stop_, &one, sizeof(one));
}

StoppableInput::int_type StoppableInput::underflow() {
  if (gptr() < egptr()) return traits_type::to_int_type(*gptr());
  ssize_t got = -1;
  do {
    pollfd waited[] = {{descriptor_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (::poll(waited, 2, -1) < 0) continue;
    if (waited[1].revents != 0) return traits_type::eof();
    got = ::read(descriptor_, buffer_.data(), buffer_.size());
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  if (got <= 0) return traits_type::eof();
  setg(buffer_.data(), buffer_.data(), buffer_.data() + got);
  return traits_type::to_int_type(*gptr());
}

}  // namespace penstock
