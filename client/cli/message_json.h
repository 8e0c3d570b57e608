#pragma once

// Messages of the wire as JSON for people and scripts.

#include <nlohmann/json.hpp>

#include "google/protobuf/message.h"

namespace penstock {

using Json = nlohmann::ordered_json;

// Fields under their own names, in their order. Numbers are numbers (also 64-bit ones), enumerators lower-case words
// without their type's name, times RFC 3339 in UTC, durations seconds, options plain values, errors {code, message, reason,
// values}. Unset messages and optional fields are left out; bytes are given as their count.
Json MessageToJson(const google::protobuf::Message& message);

}  // namespace penstock
