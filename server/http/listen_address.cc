#include "server/http/listen_address.h"

#include <arpa/inet.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

std::string ListenAddress::ToString() const {
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool ListenAddress::IsLoopback() const { return is_ipv6 ? host == "::1" : host.rfind("127.", 0) == 0; }

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
