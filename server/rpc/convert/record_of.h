#pragma once

// What a journal keeps of a request that changes state, beside its values.

#include <string>

#include "google/protobuf/message.h"

namespace penstock {

// The request without its values, and without what belongs to this attempt alone: request_id, reply, names of handles.
std::string RecordOf(const google::protobuf::Message& request);

// PayloadDigest() of the request, whatever its handles are called: after a restart, a caller puts its inputs anew.
// `payload_digest`: that with them, which it is where there are none.
std::string RecordedDigest(const google::protobuf::Message& request, const std::string& payload_digest);

}  // namespace penstock
