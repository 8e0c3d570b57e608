#pragma once

// Messages of the wire as JSON for people and scripts.

#include <nlohmann/json.hpp>

#include "google/protobuf/message.h"

namespace penstock {

using Json = nlohmann::ordered_json;

// What proto/message_json.h says, as a value.
Json MessageToJson(const google::protobuf::Message& message);

}  // namespace penstock
