#include "client/cli/value_json.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/exit_code.h"
#include "client/cli/json_fault.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr int kMaxDepth = 16;  // as the daemon's

absl::Status Fill(const Json& json, const std::string& argument, int depth, v1::Value* value) {
  if (depth > kMaxDepth) return UsageError(argument, absl::StrCat("must be nested at most ", kMaxDepth, " deep"));
  switch (json.type()) {
    case Json::value_t::boolean:
      value->set_bool_value(json.get<bool>());
      break;
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return UsageError(argument, absl::StrCat("must have integers of 64 bits with a sign, got ", json.dump()));
      }
      value->set_int_value(json.get<int64_t>());
      break;
    case Json::value_t::number_integer:
      value->set_int_value(json.get<int64_t>());
      break;
    case Json::value_t::number_float:
      value->set_double_value(json.get<double>());
      break;
    case Json::value_t::string:
      value->set_string_value(json.get<std::string>());
      break;
    case Json::value_t::array:
      value->mutable_list();
      for (const Json& item : json) {
        PENSTOCK_RETURN_IF_ERROR(Fill(item, argument, depth + 1, value->mutable_list()->add_items()));
      }
      break;
    case Json::value_t::object:
      value->mutable_dict();
      for (const auto& [key, item] : json.items()) {
        v1::NamedValue* entry = value->mutable_dict()->add_entries();
        entry->set_name(key);
        PENSTOCK_RETURN_IF_ERROR(Fill(item, argument, depth + 1, entry->mutable_value()));
      }
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

double FromFp16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const double mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 0x1f) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

template <typename T>
T ElementAt(const HostTensor& tensor, size_t index) {
  T element;
  std::memcpy(&element, tensor.bytes().data() + index * sizeof(T), sizeof(T));
  return element;
}

Json Element(const HostTensor& tensor, size_t index) {
  switch (tensor.header().type) {
    case DataType::kBool:
      return ElementAt<uint8_t>(tensor, index) != 0;
    case DataType::kUint8:
      return ElementAt<uint8_t>(tensor, index);
    case DataType::kInt8:
      return ElementAt<int8_t>(tensor, index);
    case DataType::kFp16:
      return Number(FromFp16(ElementAt<uint16_t>(tensor, index)));
    case DataType::kBf16:
      return Number(FromBf16(ElementAt<uint16_t>(tensor, index)));
    case DataType::kInt16:
      return ElementAt<int16_t>(tensor, index);
    case DataType::kUint16:
      return ElementAt<uint16_t>(tensor, index);
    case DataType::kFp32:
      return Number(ElementAt<float>(tensor, index));
    case DataType::kInt32:
      return ElementAt<int32_t>(tensor, index);
    case DataType::kUint32:
      return ElementAt<uint32_t>(tensor, index);
    case DataType::kFp64:
      return Number(ElementAt<double>(tensor, index));
    case DataType::kInt64:
      return ElementAt<int64_t>(tensor, index);
    case DataType::kUint64:
      return ElementAt<uint64_t>(tensor, index);
    case DataType::kUnspecified:
      break;
  }
  return nullptr;
}

Json Elements(const HostTensor& tensor, size_t dimension, size_t& next) {
  const std::vector<int64_t>& shape = tensor.header().shape;
  if (dimension == shape.size()) return Element(tensor, next++);
  Json list = Json::array();
  for (int64_t i = 0; i < shape[dimension]; ++i) list.push_back(Elements(tensor, dimension + 1, next));
  return list;
}

}  // namespace

absl::StatusOr<v1::Value> ValueFromJson(const std::string& text, const std::string& argument) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return UsageError(argument,
                      absl::StrCat("must be JSON, such as 3, 0.5, null, [1, 2] or '\"text\"', got ", Shortened(text)));
  }
  if (const std::string fault = JsonFault(text); !fault.empty()) return UsageError(argument, fault);
  v1::Value value;
  PENSTOCK_RETURN_IF_ERROR(Fill(json, argument, 1, &value));
  return value;
}

Json ValueToJson(const v1::Value& value) {
  const auto items = [](const v1::ValueList& list) {
    Json json = Json::array();
    for (const v1::Value& item : list.items()) json.push_back(ValueToJson(item));
    return json;
  };
  switch (value.kind_case()) {
    case v1::Value::kBoolValue:
      return value.bool_value();
    case v1::Value::kIntValue:
      return value.int_value();
    case v1::Value::kDoubleValue:
      return Number(value.double_value());
    case v1::Value::kStringValue:
      return value.string_value();
    case v1::Value::kList:
      return items(value.list());
    case v1::Value::kTuple:
      return items(value.tuple());
    case v1::Value::kDict: {
      Json json = Json::object();
      for (const v1::NamedValue& entry : value.dict().entries()) json[entry.name()] = ValueToJson(entry.value());
      return json;
    }
    case v1::Value::kHandle:
      return {{"tensor", value.handle().tensor()}};
    case v1::Value::kTensor:
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return nullptr;
}

Json TensorToJson(const HostTensor& tensor) {
  size_t next = 0;
  return Elements(tensor, 0, next);
}

Json ValuesToJson(const FetchedHandle& fetched) {
  Json json = Json::object();
  for (const v1::NamedValue& value : fetched.values) json[value.name()] = ValueToJson(value.value());
  return json;
}

void SayLeftOut(const FetchedHandle& fetched, Session& session) {
  if (fetched.values.empty()) return;
  std::vector<std::string> names;
  for (const v1::NamedValue& value : fetched.values) names.push_back(value.name());
  session.Say(absl::StrCat("left out, for they are no tensors: ", absl::StrJoin(names, ", ")));
}

}  // namespace penstock
