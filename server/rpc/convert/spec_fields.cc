#include "server/rpc/convert/spec_fields.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr int kMaxOptions = 64;
constexpr size_t kMaxTextBytes = 256;

}  // namespace

absl::Status SpecInvalid(const std::string& field, std::string_view problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               field + ": " + std::string(problem) + ", got " + value)
      .With("field", field)
      .With("value", value);
}

absl::Status CheckCount(int count, int most, const std::string& field, std::string_view what) {
  if (count <= most) return absl::OkStatus();
  return SpecInvalid(field, absl::StrCat("must have at most ", most, " ", std::string(what)), absl::StrCat(count));
}

absl::Status CheckText(const std::string& text, const std::string& field) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return SpecInvalid(field, absl::StrCat("must have at most ", kMaxTextBytes, " bytes"),
                     absl::StrCat(text.size(), " bytes"));
}

absl::StatusOr<OptionMap> ReadOptions(const google::protobuf::Map<std::string, v1::Option>& options,
                                      const std::string& field) {
  PENSTOCK_RETURN_IF_ERROR(CheckCount(static_cast<int>(options.size()), kMaxOptions, field, "entries"));
  OptionMap map;
  for (const auto& [name, option] : options) {
    const std::string entry = field + "[" + Shortened(name) + "]";
    switch (option.value_case()) {
      case v1::Option::kBoolValue:
        map[name] = option.bool_value();
        break;
      case v1::Option::kIntValue:
        map[name] = option.int_value();
        break;
      case v1::Option::kDoubleValue:
        map[name] = option.double_value();
        break;
      case v1::Option::kStringValue:
        PENSTOCK_RETURN_IF_ERROR(CheckText(option.string_value(), entry));
        map[name] = option.string_value();
        break;
      case v1::Option::VALUE_NOT_SET:
        return SpecInvalid(entry, "must have a value", "nothing");
    }
  }
  return map;
}

void WriteOptions(const OptionMap& options, google::protobuf::Map<std::string, v1::Option>* map) {
  for (const auto& [name, value] : options) {
    v1::Option& option = (*map)[name];
    if (const bool* flag = std::get_if<bool>(&value)) {
      option.set_bool_value(*flag);
    } else if (const int64_t* whole = std::get_if<int64_t>(&value)) {
      option.set_int_value(*whole);
    } else if (const double* number = std::get_if<double>(&value)) {
      option.set_double_value(*number);
    } else {
      option.set_string_value(std::get<std::string>(value));
    }
  }
}

}  // namespace penstock
