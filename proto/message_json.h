#pragma once

// Messages of the wire as JSON for people and scripts: what commands print with -o json, and what status pages answer.

#include <string>

#include "google/protobuf/message.h"

namespace penstock {

// Fields under their own names, in their order. Numbers are numbers (also 64-bit ones; those that are not finite are
// null), enumerators lower-case words without their type's name, times RFC 3339 in UTC, durations seconds, options
// plain values, errors {code, message, reason, values}. Unset messages and optional fields are left out; bytes are
// given as their count.
std::string MessageToJsonText(const google::protobuf::Message& message);

}  // namespace penstock
