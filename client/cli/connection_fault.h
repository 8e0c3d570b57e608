#pragma once

// Why no call came through, for people.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

struct ConnectionFault {
  std::string what;       // happened
  std::string_view hint;  // what to do
};

// The failure of a call to the server that `bench --compare` names, not to --server.
absl::Status OfCompared(absl::Status failure, std::string_view address);

// What a failure of the transport means; `tls`: whether the client was to speak TLS. It goes by the words of gRPC and
// OpenSSL, for there is nothing else to go by; what has none of them is a daemon that does not answer.
ConnectionFault FaultOf(const absl::Status& failure, std::string_view server, bool tls);

}  // namespace penstock
