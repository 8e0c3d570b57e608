#pragma once

// What a failed call says, decoded from the wire.

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace penstock {

// The end of one attempt of a call.
struct CallError {
  // Code and message, with the reason and named values of the server's ErrorInfo (engine/base/error.h reads them).
  // Field violations appear as values "violations[0]" and so on. A transport's failure has no reason.
  absl::Status status;

  // How long the server asks to wait before the next attempt: RetryInfo or `grpc-retry-pushback-ms`.
  std::optional<absl::Duration> retry_after;

  // The server asks not to try again (a negative or senseless push-back).
  bool retry_forbidden = false;

  bool ok() const { return status.ok(); }
};

// Decodes a finished attempt; the context must be that of the attempt.
CallError DecodeCallError(const grpc::Status& status, const grpc::ClientContext& context);

// The end of calls whose client was cancelled.
absl::Status CancelledByClient();

// The server broke the protocol: INTERNAL with reason BUG.
absl::Status ServerBug(std::string_view what);

// Decodes the error of an attempt that was an answer on a stream.
CallError DecodeMessageError(const google::rpc::Status& message);

// Decodes an error that travels inside a message: of a handle, or of one name in a batch.
absl::Status StatusFromMessage(const google::rpc::Status& message);

// True if no handler of the server returned this error: connection refused, broken or closed.
bool IsTransportFailure(const absl::Status& status);

}  // namespace penstock
