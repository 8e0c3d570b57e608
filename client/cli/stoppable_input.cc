#include "client/cli/stoppable_input.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace penstock {

StoppableInput::int_type StoppableInput::underflow() {
  if (gptr() < egptr()) return traits_type::to_int_type(*gptr());
  ssize_t got = -1;
  do {
    if (!stop_.Wait(descriptor_, POLLIN)) return traits_type::eof();
    got = ::read(descriptor_, buffer_.data(), buffer_.size());
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  if (got <= 0) return traits_type::eof();
  setg(buffer_.data(), buffer_.data(), buffer_.data() + got);
  return traits_type::to_int_type(*gptr());
}

}  // namespace penstock
