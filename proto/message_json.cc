#include "proto/message_json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/log.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string Quoted(std::string_view text) { return absl::StrCat("\"", JsonEscape(text), "\""); }

// The shortest text that reads as the same number, and as one that is not an integer.
std::string Decimal(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

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

std::string Object(const std::map<std::string, std::string>& values) {
  std::string out = "{";
  for (const auto& [name, value] : values) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", Quoted(name), ":", value);
  }
  return out + "}";
}

std::string ErrorText(const google::rpc::Status& error) {
  std::string reason;
  std::map<std::string, std::string> values;
  for (const google::protobuf::Any& detail : error.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    if (detail.UnpackTo(&info)) {
      reason = info.reason();
      for (const auto& [name, value] : info.metadata()) values[name] = Quoted(value);
    } else if (detail.UnpackTo(&bad_request)) {
      for (int i = 0; i < bad_request.field_violations_size(); ++i) {
        const auto& violation = bad_request.field_violations(i);
        values[absl::StrCat("violations[", i, "]")] =
            Quoted(absl::StrCat(violation.field(), ": ", violation.description()));
      }
    }
  }
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(error.code()));
  return absl::StrCat("{\"code\":", Quoted(code), ",\"message\":", Quoted(error.message()),
                      ",\"reason\":", Quoted(reason), ",\"values\":", Object(values), "}");
}

std::string OptionText(const v1::Option& option) {
  switch (option.value_case()) {
    case v1::Option::kBoolValue:
      return option.bool_value() ? "true" : "false";
    case v1::Option::kIntValue:
      return absl::StrCat(option.int_value());
    case v1::Option::kDoubleValue:
      return Decimal(option.double_value());
    case v1::Option::kStringValue:
      return Quoted(option.string_value());
    case v1::Option::VALUE_NOT_SET:
      return "null";
  }
  return "null";
}

// A message that JSON has a plain form for, or an object of its fields.
std::string MessageText(const Message& message) {
  if (const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&message)) {
    const absl::Time instant = absl::FromUnixSeconds(time->seconds()) + absl::Nanoseconds(time->nanos());
    return Quoted(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", instant, absl::UTCTimeZone()));
  }
  if (const auto* span = dynamic_cast<const google::protobuf::Duration*>(&message)) {
    return Decimal(absl::ToDoubleSeconds(absl::Seconds(span->seconds()) + absl::Nanoseconds(span->nanos())));
  }
  if (const auto* error = dynamic_cast<const google::rpc::Status*>(&message)) return ErrorText(*error);
  if (const auto* option = dynamic_cast<const v1::Option*>(&message)) return OptionText(*option);
  return MessageToJsonText(message);
}

// One value; `index` is -1 for a field that does not repeat.
std::string ValueText(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(one ? reflection.GetInt32(message, field)
                              : reflection.GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(one ? reflection.GetInt64(message, field)
                              : reflection.GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(one ? reflection.GetUInt32(message, field)
                              : reflection.GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(one ? reflection.GetUInt64(message, field)
                              : reflection.GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Decimal(one ? reflection.GetDouble(message, field) : reflection.GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Decimal(one ? reflection.GetFloat(message, field) : reflection.GetRepeatedFloat(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (one ? reflection.GetBool(message, field) : reflection.GetRepeatedBool(message, field, index)) ? "true"
                                                                                                            : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return Quoted(
          EnumWord(one ? *reflection.GetEnum(message, field) : *reflection.GetRepeatedEnum(message, field, index)));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text =
          one ? reflection.GetString(message, field) : reflection.GetRepeatedString(message, field, index);
      return field->type() == FieldDescriptor::TYPE_BYTES ? absl::StrCat(text.size()) : Quoted(text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageText(one ? reflection.GetMessage(message, field)
                             : reflection.GetRepeatedMessage(message, field, index));
  }
  return "null";
}

// By key: the wire has no order.
std::string MapText(const Message& message, const FieldDescriptor* field) {
  const FieldDescriptor* key = field->message_type()->map_key();
  const FieldDescriptor* value = field->message_type()->map_value();
  std::map<std::string, std::string> sorted;
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, field, i);
    const std::string name = key->cpp_type() == FieldDescriptor::CPPTYPE_STRING
                                 ? entry.GetReflection()->GetString(entry, key)
                                 : ValueText(entry, key, -1);
    sorted[name] = ValueText(entry, value, -1);
  }
  return Object(sorted);
}

std::string ListText(const Message& message, const FieldDescriptor* field) {
  std::string out = "[";
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    absl::StrAppend(&out, i > 0 ? "," : "", ValueText(message, field, i));
  }
  return out + "]";
}

}  // namespace

std::string MessageToJsonText(const Message& message) {
  std::string out = "{";
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const bool listed =
        field->is_repeated() || !field->has_presence() || message.GetReflection()->HasField(message, field);
    if (!listed) continue;
    absl::StrAppend(&out, out.size() > 1 ? "," : "", Quoted(field->name()), ":",
                    field->is_map()        ? MapText(message, field)
                    : field->is_repeated() ? ListText(message, field)
                                           : ValueText(message, field, -1));
  }
  return out + "}";
}

}  // namespace penstock
