#pragma once

// Addresses that a listener may be bound to.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

// A host that needs no name service, and a port.
struct ListenAddress {
  std::string host;  // numeric: "127.0.0.1" or "::1"
  bool is_ipv6 = false;
  int port = 0;  // 0: any free one

  // "127.0.0.1:8473" or "[::1]:8473".
  std::string ToString() const;
  // Whether only this host can reach the address.
  bool IsLoopback() const;
};

// Why the address can't be listened on now, in the system's words, for example "Address already in use"; empty if it is
// free by now.
std::string WhyNotFree(const ListenAddress& address);

// Reads "127.0.0.1:8473", "[::1]:8473", "localhost:8473"; the port may be 0.
//
// Fails: INVALID_ARGUMENT / FIELD_INVALID that names `field` and the text.
absl::StatusOr<ListenAddress> ParseListenAddress(std::string_view text, std::string_view field);

}  // namespace penstock
