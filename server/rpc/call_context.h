#pragma once

// What every call carries beside its message: caller, deadline, request id.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "server/rpc/convert/field_values.h"

namespace penstock {

// Who calls: the metadata `penstock-caller`, or `local`. It separates owners and quotas of honest
// clients, and secures nothing.
//
// Fails:     INVALID_ARGUMENT / NAME_INVALID unless it is [A-Za-z0-9_.@:-]{1,128} and stands once.
absl::StatusOr<std::string> CallerOf(const grpc::ServerContextBase& context);

// Who opens a stream of gRPC's own services, whose clients send no such metadata: the host that it comes from, by its
// address without the port; all of a Unix socket are one.
std::string HostOf(const grpc::ServerContextBase& context);
// The same of an address as gRPC writes it: "ipv4:192.0.2.1:50000", "ipv6:%5B2001:db8::1%5D:50000", "unix:".
std::string HostIn(std::string_view peer);

// Which of the caller's programs calls: the metadata `penstock-session`, or empty. It holds accumulations, and nothing
// else.
//
// Fails:     as CallerOf.
absl::StatusOr<std::string> SessionOf(const grpc::ServerContextBase& context);

// The deadline of the call, or the infinite future.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);

// Checks a request id: a canonical lower-case UUID.
//
// Fails:     INVALID_ARGUMENT / REQUEST_ID_MISSING if it is required and empty, FIELD_INVALID if it
//            is anything else.
absl::Status CheckRequestId(const std::string& request_id, bool required, std::string_view field = "request_id");

}  // namespace penstock
