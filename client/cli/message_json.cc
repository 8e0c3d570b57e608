#include "client/cli/message_json.h"

#include "proto/message_json.h"

namespace penstock {

Json MessageToJson(const google::protobuf::Message& message) {
  return Json::parse(MessageToJsonText(message), nullptr, /*allow_exceptions=*/false);
}

}  // namespace penstock
