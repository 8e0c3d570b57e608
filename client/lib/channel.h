#pragma once

// Connections to a daemon, with the settings that every one of them needs.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class Channel;
class ChannelCredentials;
}  // namespace grpc

namespace penstock {

// What travels on a connection. Control calls have one of their own, so that they never queue behind tensors.
enum class ChannelUse { kControl, kTensors };

// A lazy connection: nothing happens before the first call. Keep-alive pings find a dead peer within 30 s; gRPC's own
// retries are off, because ours repeat a request_id or resume at an offset.
//
// Fails: INVALID_ARGUMENT / FIELD_INVALID for an address that is neither HOST:PORT nor unix:PATH.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const std::string& address, ChannelUse use, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

}  // namespace penstock
