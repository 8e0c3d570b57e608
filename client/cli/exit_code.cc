#include "client/cli/exit_code.h"

#include <string>
#include <string_view>

#include "client/lib/call_error.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr std::string_view kUsageReason = "USAGE";

ExitCode Classify(const absl::Status& status) {
  if (status.ok()) return ExitCode::kSuccess;
  const std::string reason = ReasonOf(status);
  if (reason == kUsageReason) return ExitCode::kUsage;
  if (IsTransportFailure(status)) return ExitCode::kUnreachable;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kNotReady;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ExitCode::kRefused;
    case absl::StatusCode::kFailedPrecondition:
      return reason == "PIPELINE_NOT_READY" ? ExitCode::kNotReady : ExitCode::kFailure;
    default:
      return ExitCode::kFailure;
  }
}

}  // namespace

int ExitCodeOf(const absl::Status& status, bool grpc_codes) {
  const ExitCode code = Classify(status);
  if (grpc_codes && code != ExitCode::kSuccess && code != ExitCode::kUsage) {
    return 64 + static_cast<int>(status.code());
  }
  return static_cast<int>(code);
}

absl::Status UsageError(std::string_view argument, std::string_view problem) {
  return Error(absl::StatusCode::kInvalidArgument, kUsageReason, std::string(argument) + ": " + std::string(problem));
}

}  // namespace penstock
