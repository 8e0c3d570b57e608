#include "server/http/listen_address.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

std::string ListenAddress::ToString() const {
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool ListenAddress::IsLoopback() const { return is_ipv6 ? host == "::1" : host.rfind("127.", 0) == 0; }

std::string WhyNotFree(const ListenAddress& address) {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const auto port = htons(static_cast<uint16_t>(address.port));
  if (address.is_ipv6) {
    auto* one = reinterpret_cast<sockaddr_in6*>(&storage);
    one->sin6_family = AF_INET6;
    one->sin6_port = port;
    ::inet_pton(AF_INET6, address.host.c_str(), &one->sin6_addr);
    size = sizeof(*one);
  } else {
    auto* one = reinterpret_cast<sockaddr_in*>(&storage);
    one->sin_family = AF_INET;
    one->sin_port = port;
    ::inet_pton(AF_INET, address.host.c_str(), &one->sin_addr);
    size = sizeof(*one);
  }
  const int socket = ::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int reuse = 1;  // as servers do, so that connections that have ended don't count
  const bool free = socket >= 0 && ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) == 0 &&
                    ::bind(socket, reinterpret_cast<const sockaddr*>(&storage), size) == 0 && ::listen(socket, 1) == 0;
  std::string why = free ? "" : std::strerror(errno);
  if (socket >= 0) ::close(socket);
  return why;
}

absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text, std::string_view field) {
  const auto invalid = [&](std::string_view problem) { return InvalidField(field, problem, text); };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return invalid("must be HOST:PORT");

  ListenAddress address;
  const std::string port(text.substr(colon + 1));
  if (!absl::SimpleAtoi(port, &address.port) || address.port < 0 || address.port > 65535) {
    return invalid("must have a port from 0 to 65535");
  }
  std::string_view host = text.substr(0, colon);
  address.is_ipv6 = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (address.is_ipv6) host = host.substr(1, host.size() - 2);
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  in6_addr parsed;  // large enough for both families
  if (::inet_pton(address.is_ipv6 ? AF_INET6 : AF_INET, address.host.c_str(), &parsed) != 1) {
    return invalid("must have a numeric host or localhost; an IPv6 host stands in brackets");
  }
  return address;
}

}  // namespace penstock
