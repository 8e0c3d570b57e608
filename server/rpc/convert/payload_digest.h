#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace penstock {

// SHA-256 in hex over the message with the named fields cleared: equal for a retry, whatever its
// request id and how it wants its reply.
std::string PayloadDigest(const google::protobuf::Message& message,
                          const std::initializer_list<const char*>& cleared = {"request_id", "reply"});

}  // namespace penstock
