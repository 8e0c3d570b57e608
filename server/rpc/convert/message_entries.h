#pragma once

// How much a message grows when it is parsed, estimated from its bytes.

#include <cstdint>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"
#include "server/rpc/convert/wire_reader.h"

namespace penstock {

inline constexpr int64_t kMaxMessageEntries = 65'536;

// Checks, before a message is parsed, that it holds at most `most` entries. An entry is a field that becomes an object
// of its own: a string, a message, an entry of a map, a field that the schema does not know. Two bytes on the wire are
// enough for one, and it takes some hundred bytes of memory. Numbers are no entries: they grow eightfold at most.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID: more entries, messages nested more than 100 deep, bytes that are no
//            protobuf message.
absl::Status CheckMessageEntries(const Pieces& message, const google::protobuf::Descriptor* schema,
                                 int64_t most = kMaxMessageEntries);

}  // namespace penstock
