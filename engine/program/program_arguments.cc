#include "engine/program/program_arguments.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace penstock {

using nlohmann::json;

ProgramItem ProgramArguments::Find(const ProgramScope& scope, const json& name) {
  const std::string text = fields_.Text(name);
  const auto found = scope.find(text);
  if (found != scope.end()) return found->second;
  fields_.Fail("uses a value that no operator before it makes", text);
  return {};
}

c10::IValue ProgramArguments::Literal(const std::string& kind, const json& value) {
  if (kind == "as_none") return {};
  if (kind == "as_int") return fields_.Int(value);
  if (kind == "as_float") return fields_.Double(value);
  if (kind == "as_bool") return fields_.Bool(value);
  if (kind == "as_string") return fields_.Text(value);
  if (kind == "as_scalar_type") return static_cast<int64_t>(ProgramScalarType(value, fields_));
  if (kind == "as_layout") {
    if (fields_.Int(value) != 7) fields_.Fail("must use strided tensors", value.dump());
    return static_cast<int64_t>(c10::Layout::Strided);
  }
  if (kind == "as_memory_format") {
    static constexpr c10::MemoryFormat kFormats[] = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                                     c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};
    const int64_t number = fields_.Int(value);
    if (number >= 1 && number <= 4) return static_cast<int64_t>(kFormats[number - 1]);
    fields_.Fail("has a memory format that is not supported", value.dump());
    return {};
  }
  fields_.Fail("has an argument of a kind that is not supported", kind);
  return {};
}

// A name or a number of a union such as SymIntArgument.
ProgramItem ProgramArguments::Symbol(const ProgramScope& scope, const json& value) {
  const json* content = nullptr;
  const std::string kind = fields_.Union(value, content);
  if (kind == "as_name") return Find(scope, *content);
  return {.literal = Literal(kind, *content)};
}

ProgramItem ProgramArguments::TensorOf(const ProgramScope& scope, const json& value) {
  return Find(scope, fields_.At(value, "name"));
}

ProgramItem ProgramArguments::OptionalTensorOf(const ProgramScope& scope, const json& value) {
  const json* content = nullptr;
  const std::string kind = fields_.Union(value, content);
  if (kind == "as_tensor") return TensorOf(scope, *content);
  return {.literal = Literal(kind, *content)};
}

ProgramArgument ProgramArguments::Argument(const ProgramScope& scope, const std::string& kind, const json& value) {
  ProgramArgument argument;
  const auto list = [&](const auto& read) {
    argument.kind = ProgramArgument::Kind::kList;
    if (!value.is_array()) return fields_.Fail("must be a list", value.type_name());
    if (value.size() > static_cast<uint64_t>(limits_.items)) {
      return fields_.Fail(absl::StrCat("must have lists of at most ", limits_.items, " items"),
                          absl::StrCat(value.size()));
    }
    for (const json& item : value) argument.items.push_back(read(item));
  };
  if (kind == "as_tensor") {
    argument.items = {TensorOf(scope, value)};
  } else if (kind == "as_tensors") {
    list([&](const json& item) { return TensorOf(scope, item); });
  } else if (kind == "as_optional_tensor") {
    argument.items = {OptionalTensorOf(scope, value)};
  } else if (kind == "as_optional_tensors") {
    list([&](const json& item) { return OptionalTensorOf(scope, item); });
  } else if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    argument.items = {Symbol(scope, value)};
  } else if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") {
    list([&](const json& item) { return Symbol(scope, item); });
  } else if (kind == "as_ints") {
    list([&](const json& item) { return ProgramItem{.literal = fields_.Int(item)}; });
  } else if (kind == "as_floats") {
    list([&](const json& item) { return ProgramItem{.literal = fields_.Double(item)}; });
  } else if (kind == "as_bools") {
    list([&](const json& item) { return ProgramItem{.literal = fields_.Bool(item)}; });
  } else if (kind == "as_device") {
    fields_.Object(value, {"type"}, {"index"});
    fields_.Text(fields_.At(value, "type"));
    argument.kind = ProgramArgument::Kind::kDevice;
  } else {
    argument.items = {{.literal = Literal(kind, value)}};
  }
  return argument;
}

}  // namespace penstock
