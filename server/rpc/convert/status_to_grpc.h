#pragma once

// The one way out for errors: a Status of ours becomes what a client sees, clean and bounded.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace penstock {

inline constexpr size_t kMaxMessageBytes = 512;
inline constexpr size_t kMaxDetailBytes = 4096;

// The status with one google.rpc.ErrorInfo (reason, domain penstock.v1, the named values) and, where
// they fit, BadRequest, QuotaFailure, RetryInfo, PreconditionFailure or ResourceInfo.
//
// Model:     a status without a reason gets the general one of its code; UNKNOWN, INTERNAL and codes
//            without a general reason become INTERNAL / BUG with an incident id, which one log line
//            per incident repeats together with all values, "path" included.
// Units:     message at most 512 printable bytes without paths and pointers; details at most 4 KiB.
google::rpc::Status ToRpcStatus(const absl::Status& status);

// Code, reason, incident and first words of such an error, for a reply that holds a thousand: at most kShortErrorBytes.
inline constexpr size_t kShortErrorBytes = 512;
google::rpc::Status ShortError(const google::rpc::Status& error);

// ToRpcStatus() as a status of gRPC, its details serialized. OK stays OK. Where memory is too short for that, the code
// alone, so that a call or a stream can always be ended with it.
grpc::Status ToGrpcStatus(const absl::Status& status) noexcept;

// The end of a stream: the same, with the trailing metadata that tells a client when to come back.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::CallbackServerContext* context) noexcept;

// Adds that metadata, where the status has it.
void AddRetryPushback(const absl::Status& status, grpc::CallbackServerContext* context) noexcept;

// The status with more values in its ErrorInfo, where it has one: those that are not there yet, as far as they fit.
grpc::Status WithErrorValues(const grpc::Status& status,
                             const std::vector<std::pair<std::string, std::string>>& values);

// The reason in the ErrorInfo of a status; empty where there is none.
std::string ReasonIn(const grpc::Status& status);

// What the trailing metadata `grpc-retry-pushback-ms` should say: milliseconds, -1 for "do not retry",
// nothing for other codes than RESOURCE_EXHAUSTED, and UNAVAILABLE that names a time.
std::optional<int> RetryPushbackMillis(const absl::Status& status);

// `text` in printable valid UTF-8, without pointers and absolute paths but those of the daemon's own pages, at most
// `max_bytes` long.
std::string CleanText(std::string_view text, size_t max_bytes);

}  // namespace penstock
