#pragma once

// Exit codes, for scripts.

#include <string_view>

#include "absl/status/status.h"

namespace penstock {

enum class ExitCode {
  kSuccess = 0,
  kFailure = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotReady = 4,  // or a deadline passed
  kRefused = 5,   // quota, role, credential
  kPartial = 6,   // some names of a batch failed, some steps of a training were not applied
  kUnstable = 7,  // a measurement did not settle
};

// The code for the end of a command. With `grpc_codes`: 64 + the gRPC code of an error.
int ExitCodeOf(const absl::Status& status, bool grpc_codes = false);

// An error of the command's arguments: exit code 2.
absl::Status UsageError(std::string_view argument, std::string_view problem);

}  // namespace penstock
