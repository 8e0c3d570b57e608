#pragma once

// What the daemon tells the service manager that started it: systemd's notification protocol, without its library.

#include <map>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace penstock {

// Sends messages such as "READY=1" to the socket that the service manager listens on.
//
// Model:     An address and a period; without an address (no service manager) every call does nothing. A name that
//            begins with @ stands in Linux's abstract namespace. See sd_notify(3) for the words.
// Owns:      nothing; each message has a socket of its own.
// Threads:   any.
// Units:     feed_every() is half of what the manager waits for; zero: it waits for nothing.
// Fails:     never; a message that can't be sent is logged, for a daemon serves without one.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, whose watchdog is only meant for process `pid`.
  static ServiceManager FromEnvironment(const std::map<std::string, std::string>& environment, int pid);

  void Tell(std::string_view words) const;
  absl::Duration feed_every() const { return feed_every_; }

 private:
  ServiceManager(std::string address, absl::Duration feed_every)
      : address_(std::move(address)), feed_every_(feed_every) {}

  const std::string address_;
  const absl::Duration feed_every_;
};

}  // namespace penstock
