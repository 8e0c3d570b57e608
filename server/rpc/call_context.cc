#include "server/rpc/call_context.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/caller_name.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

bool IsLowerHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

// Of the metadata; `absent` if it isn't there.
absl::StatusOr<std::string> NameIn(const grpc::ServerContextBase& context, const char* key, const char* absent) {
  const auto [begin, end] = context.client_metadata().equal_range(key);
  if (begin == end) return std::string(absent);
  if (std::next(begin) != end) return InvalidName(key, "must stand once in the metadata", "more");
  std::string name(begin->second.data(), begin->second.size());
  PENSTOCK_RETURN_IF_ERROR(CheckCallerName(name, key));
  return name;
}

}  // namespace

absl::StatusOr<std::string> CallerOf(const grpc::ServerContextBase& context) {
  return NameIn(context, "penstock-caller", "local");
}

std::string HostOf(const grpc::ServerContextBase& context) { return HostIn(context.peer()); }

std::string HostIn(std::string_view peer) {
  const bool has_port = peer.starts_with("ipv4:") || peer.starts_with("ipv6:");
  return std::string(has_port ? peer.substr(0, peer.rfind(':')) : peer.substr(0, peer.find(':')));
}

absl::StatusOr<std::string> SessionOf(const grpc::ServerContextBase& context) {
  return NameIn(context, "penstock-session", "");
}

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

absl::Status CheckRequestId(const std::string& request_id, bool required, std::string_view field) {
  if (request_id.empty()) {
    if (!required) return absl::OkStatus();
    return Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_MISSING",
                 "request_id: a call that changes state needs one, got an empty one")
        .With("field", "request_id")
        .With("value", "");
  }
  bool canonical = request_id.size() == 36;
  for (size_t i = 0; canonical && i < request_id.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    canonical = dash ? request_id[i] == '-' : IsLowerHex(request_id[i]);
  }
  if (canonical) return absl::OkStatus();
  return InvalidField(field, "must be a canonical lower-case UUID", Shortened(request_id));
}

}  // namespace penstock
