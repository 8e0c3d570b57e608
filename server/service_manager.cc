#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

std::string ValueOf(const std::map<std::string, std::string>& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// Sends one datagram; returns what went wrong, or "".
std::string Send(const std::string& address, std::string_view words) {
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  if (address.size() >= sizeof(to.sun_path)) return "its name is too long";
  std::memcpy(to.sun_path, address.data(), address.size());
  if (address[0] == '@') to.sun_path[0] = '\0';
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::strerror(errno);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  const ssize_t sent = ::sendto(descriptor, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                reinterpret_cast<const sockaddr*>(&to), length);
  const std::string problem = sent < 0 ? std::strerror(errno) : "";
  ::close(descriptor);
  return problem;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment(const std::map<std::string, std::string>& environment, int pid) {
  std::string address = ValueOf(environment, "NOTIFY_SOCKET");
  if (!address.empty() && address[0] != '/' && address[0] != '@') {
    LogWarning("no service manager is told anything: its address is of a kind that is not known",
               {{"NOTIFY_SOCKET", address}});
    address.clear();
  }
  int64_t microseconds = 0;
  const std::string owner = ValueOf(environment, "WATCHDOG_PID");
  const bool for_us = owner.empty() || owner == absl::StrCat(pid);
  if (address.empty() || !for_us || !absl::SimpleAtoi(ValueOf(environment, "WATCHDOG_USEC"), &microseconds) ||
      microseconds < 0) {
    microseconds = 0;
  }
  return ServiceManager(std::move(address), absl::Microseconds(microseconds) / 2);
}

void ServiceManager::Tell(std::string_view words) const {
  if (address_.empty()) return;
  if (const std::string problem = Send(address_, words); !problem.empty()) {
    LogWarning("the service manager can't be told", {{"words", std::string(words)}, {"problem", problem}});
  }
}

}  // namespace penstock
