#include "engine/program/program_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/program/program_archive.h"

namespace penstock {
namespace {

using nlohmann::json;

const json& Nothing() {
  static const json* const nothing = new json(nullptr);
  return *nothing;
}

// What a parsed text will take, without parsing it.
struct Size {
  int depth = 0;       // of objects and arrays in one another
  int64_t values = 1;  // at most: objects, arrays and what stands in them
};

Size SizeOf(std::string_view text) {
  Size size;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      size.depth = std::max(size.depth, ++depth);
      ++size.values;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ',') {
      ++size.values;
    }
  }
  return size;
}

}  // namespace

absl::StatusOr<json> ParseProgramJson(std::string_view text, const std::string& record, const ProgramLimits& limits) {
  if (text.size() > static_cast<uint64_t>(limits.graph_bytes)) {
    return Error(absl::StatusCode::kResourceExhausted, "TENSOR_TOO_LARGE",
                 absl::StrCat("exported program ", record, ": must have at most ", limits.graph_bytes, " bytes, got ",
                              text.size()))
        .With("field", record)
        .With("value", absl::StrCat(text.size()));
  }
  const Size size = SizeOf(text);
  if (size.depth > limits.depth) {
    return ProgramError(record, absl::StrCat("must be at most ", limits.depth, " deep"), "more");
  }
  if (size.values > limits.graph_values) {
    return ProgramError(record, absl::StrCat("must have at most ", limits.graph_values, " values"),
                        absl::StrCat(size.values));
  }
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  bool repeats = false;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      repeats = true;
      repeated = value.get_ref<const std::string&>();
    }
    return true;
  };
  json document = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (document.is_discarded()) return ProgramError(record, "must be valid JSON", "something else");
  if (repeats) return ProgramError(record, "must not repeat a key", repeated);
  return document;
}

void ProgramFields::Object(const json& value, std::initializer_list<const char*> needed,
                           std::initializer_list<const char*> optional) {
  if (!value.is_object()) return Fail("must be an object", value.type_name());
  for (const char* key : needed) {
    if (!value.contains(key)) return Fail("lacks a field", key);
  }
  for (const auto& [key, content] : value.items()) {
    const auto is_key = [&key = key](const char* known) { return key == known; };
    if (std::none_of(needed.begin(), needed.end(), is_key) && std::none_of(optional.begin(), optional.end(), is_key)) {
      return Fail("has an unknown field", key);
    }
  }
}

std::string ProgramFields::Union(const json& value, const json*& content) {
  content = &Nothing();
  if (!value.is_object() || value.size() != 1) {
    Fail("must be one of a union", value.type_name());
    return "";
  }
  content = &value.begin().value();
  return value.begin().key();
}

const json& ProgramFields::At(const json& object, const char* key) const {
  if (!object.is_object()) return Nothing();
  const auto found = object.find(key);
  return found == object.end() ? Nothing() : *found;
}

const json& ProgramFields::List(const json& object, const char* key) {
  return List(object, key, std::numeric_limits<int64_t>::max());
}

const json& ProgramFields::List(const json& object, const char* key, int64_t most) {
  static const json* const empty = new json(json::array());
  const json& value = At(object, key);
  if (!value.is_array()) {
    Fail(absl::StrCat(key, " must be a list"), value.type_name());
  } else if (value.size() > static_cast<uint64_t>(most)) {
    Fail(absl::StrCat(key, " must have at most ", most, " items"), absl::StrCat(value.size()));
  } else {
    return value;
  }
  return *empty;
}

const json& ProgramFields::Map(const json& object, const char* key) {
  static const json* const empty = new json(json::object());
  const json& value = At(object, key);
  if (value.is_object()) return value;
  Fail(absl::StrCat(key, " must be a map"), value.type_name());
  return *empty;
}

std::string ProgramFields::Text(const json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  Fail("must be a text", value.type_name());
  return "";
}

int64_t ProgramFields::Int(const json& value) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (fits) return value.get<int64_t>();
  Fail("must be a whole number", value.type_name());
  return 0;
}

double ProgramFields::Double(const json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_string() ? value.get_ref<const std::string&>() : "";
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  Fail("must be a number", value.type_name());
  return 0;
}

bool ProgramFields::Bool(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  Fail("must be true or false", value.type_name());
  return false;
}

void ProgramFields::Fail(std::string_view problem, std::string_view value) {
  if (status_.ok()) status_ = ProgramError(where_, problem, value);
}

at::ScalarType ProgramScalarType(const json& value, ProgramFields& fields) {
  static const auto* const types = new std::map<int64_t, at::ScalarType>{
      {1, at::kByte},  {2, at::kChar},   {3, at::kShort}, {4, at::kInt},       {5, at::kLong},   {6, at::kHalf},
      {7, at::kFloat}, {8, at::kDouble}, {12, at::kBool}, {13, at::kBFloat16}, {28, at::kUInt16}};
  const auto found = types->find(fields.Int(value));
  if (found != types->end()) return found->second;
  fields.Fail("has an element type that is not supported", value.dump());
  return at::kFloat;
}

}  // namespace penstock
