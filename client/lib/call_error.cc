#include "client/lib/call_error.h"

#include <grpcpp/grpcpp.h>

#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "google/rpc/error_details.pb.h"

namespace penstock {
namespace {

constexpr char kPushback[] = "grpc-retry-pushback-ms";

// Reason, values and delay of the details; an unknown detail is skipped, so that servers may add some.
CallError FromDetails(const google::rpc::Status& message) {
  CallError error{absl::Status(static_cast<absl::StatusCode>(message.code()), message.message()), {}, false};
  for (const google::protobuf::Any& detail : message.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      Error rebuilt(error.status.code(), info.reason(), message.message());
      for (const auto& [name, value] : ValuesOf(error.status)) rebuilt.With(name, value);
      for (const auto& [name, value] : info.metadata()) rebuilt.With(name, value);
      error.status = rebuilt;
    } else if (detail.UnpackTo(&bad_request)) {
      for (int i = 0; i < bad_request.field_violations_size(); ++i) {
        const auto& violation = bad_request.field_violations(i);
        error.status = WithValue(error.status, absl::StrCat("violations[", i, "]"),
                                 absl::StrCat(violation.field(), ": ", violation.description()));
      }
    } else if (detail.UnpackTo(&retry)) {
      error.retry_after = absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return error;
}

// What TLS listeners tell strangers has no details: the reason begins the message.
absl::Status WithoutDetails(const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string text = status.error_message();
  const std::string_view message = text;
  const size_t colon = message.find(": ");
  if (code == absl::StatusCode::kUnauthenticated && message.starts_with("CREDENTIAL_") &&
      colon != std::string_view::npos) {
    return Error(code, message.substr(0, colon), message.substr(colon + 2));
  }
  return absl::Status(code, text);
}

void ReadPushback(const grpc::ClientContext& context, CallError* error) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(kPushback);
  if (found == trailers.end()) return;
  int64_t milliseconds = 0;
  if (absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &milliseconds) &&
      milliseconds >= 0) {
    error->retry_after = absl::Milliseconds(milliseconds);
  } else {
    error->retry_forbidden = true;
  }
}

}  // namespace

absl::Status CancelledByClient() {
  return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the client cancelled the call");
}

CallError DecodeMessageError(const google::rpc::Status& message) { return FromDetails(message); }

CallError DecodeCallError(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return {};
  google::rpc::Status message;
  CallError error;
  if (!status.error_details().empty() && message.ParseFromString(status.error_details()) &&
      message.code() == static_cast<int>(status.error_code())) {
    error = FromDetails(message);
  } else {
    error.status = WithoutDetails(status);
  }
  ReadPushback(context, &error);
  return error;
}

absl::Status StatusFromMessage(const google::rpc::Status& message) { return FromDetails(message).status; }

absl::Status ServerBug(std::string_view what) {
  return Error(absl::StatusCode::kInternal, "BUG",
               absl::StrCat("the server broke the protocol: ", absl::string_view(what.data(), what.size())));
}

bool IsTransportFailure(const absl::Status& status) {
  if (!ReasonOf(status).empty()) return false;
  // Handlers always give a reason, and never answer UNKNOWN: without one, these come from a broken connection.
  // CANCELLED is what a server's last moments do to calls.
  return status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kUnknown ||
         status.code() == absl::StatusCode::kInternal || status.code() == absl::StatusCode::kCancelled;
}

}  // namespace penstock
