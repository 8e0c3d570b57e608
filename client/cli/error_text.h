#pragma once

// Errors for people.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// What failed, why (code and reason), the named values, what to do, and the request_id. Several lines.
std::string ErrorText(std::string_view command, const absl::Status& status, std::string_view server, bool tls = false);

}  // namespace penstock
