#include "client/cli/message_json.h"

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "client/lib/call_error.h"
#include "client/lib/durations.h"
#include "engine/base/error.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/rpc/status.pb.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// PIPELINE_STATE_READY of PipelineState -> ready.
std::string EnumWord(const google::protobuf::EnumValueDescriptor& value) {
  std::string prefix;
  for (char letter : value.type()->name()) {
    if (absl::ascii_isupper(letter) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(letter);
  }
  prefix += '_';
  absl::string_view word = value.name();
  if (absl::StartsWith(word, prefix)) word.remove_prefix(prefix.size());
  return absl::AsciiStrToLower(word);
}

Json ErrorToJson(const google::rpc::Status& message) {
  const absl::Status status = StatusFromMessage(message);
  Json json = {{"code", absl::StatusCodeToString(status.code())},
               {"message", message.message()},
               {"reason", ReasonOf(status)},
               {"values", Json::object()}};
  for (const auto& [name, value] : ValuesOf(status)) json["values"][name] = value;
  return json;
}

Json OptionToJson(const v1::Option& option) {
  switch (option.value_case()) {
    case v1::Option::kBoolValue:
      return option.bool_value();
    case v1::Option::kIntValue:
      return option.int_value();
    case v1::Option::kDoubleValue:
      return option.double_value();
    case v1::Option::kStringValue:
      return option.string_value();
    case v1::Option::VALUE_NOT_SET:
      return nullptr;
  }
  return nullptr;
}

// A message that JSON has a plain form for, or an object of its fields.
Json AnyMessageToJson(const Message& message) {
  if (const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&message)) {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", FromMessage(*time), absl::UTCTimeZone());
  }
  if (const auto* duration = dynamic_cast<const google::protobuf::Duration*>(&message)) {
    return absl::ToDoubleSeconds(FromMessage(*duration));
  }
  if (const auto* error = dynamic_cast<const google::rpc::Status*>(&message)) return ErrorToJson(*error);
  if (const auto* option = dynamic_cast<const v1::Option*>(&message)) return OptionToJson(*option);
  return MessageToJson(message);
}

// One value; `index` is -1 for a field that does not repeat.
Json ValueToJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? reflection.GetInt32(message, field) : reflection.GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? reflection.GetInt64(message, field) : reflection.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? reflection.GetUInt32(message, field) : reflection.GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? reflection.GetUInt64(message, field) : reflection.GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? reflection.GetDouble(message, field) : reflection.GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? reflection.GetFloat(message, field) : reflection.GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? reflection.GetBool(message, field) : reflection.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumWord(one ? *reflection.GetEnum(message, field) : *reflection.GetRepeatedEnum(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text =
          one ? reflection.GetString(message, field) : reflection.GetRepeatedString(message, field, index);
      if (field->type() == FieldDescriptor::TYPE_BYTES) return text.size();
      return text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return AnyMessageToJson(one ? reflection.GetMessage(message, field)
                                  : reflection.GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

Json MapToJson(const Message& message, const FieldDescriptor* field) {
  const FieldDescriptor* key = field->message_type()->map_key();
  const FieldDescriptor* value = field->message_type()->map_value();
  std::map<std::string, Json> sorted;  // the wire has no order
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, field, i);
    const Json name = ValueToJson(entry, key, -1);
    sorted[name.is_string() ? name.get<std::string>() : name.dump()] = ValueToJson(entry, value, -1);
  }
  Json object = Json::object();
  for (auto& [name, json] : sorted) object[name] = std::move(json);
  return object;
}

}  // namespace

Json MessageToJson(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  Json object = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_map()) {
      object[field->name()] = MapToJson(message, field);
    } else if (field->is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) list.push_back(ValueToJson(message, field, k));
      object[field->name()] = std::move(list);
    } else if (!field->has_presence() || reflection.HasField(message, field)) {
      object[field->name()] = ValueToJson(message, field, -1);
    }
  }
  return object;
}

}  // namespace penstock
