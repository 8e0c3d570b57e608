#include "client/cli/option_pairs.h"

#include "absl/strings/numbers.h"
#include "client/cli/exit_code.h"

namespace penstock {
namespace {

bool IsInteger(const std::string& text) { return text.find_first_not_of("+-0123456789") == std::string::npos; }

v1::Option ParseValue(const std::string& text) {
  v1::Option option;
  int64_t integer = 0;
  double number = 0;
  if (text == "true" || text == "false") {
    option.set_bool_value(text == "true");
  } else if (absl::SimpleAtoi(text, &integer)) {
    option.set_int_value(integer);
  } else if (absl::SimpleAtod(text, &number)) {
    option.set_double_value(number);
  } else {
    option.set_string_value(text);
  }
  return option;
}

}  // namespace

absl::Status PutPairs(std::string_view argument, const std::vector<std::string>& pairs, OptionMap* map) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return UsageError(argument, "must be KEY=VALUE, got '" + pair + "'");
    }
    const v1::Option option = ParseValue(pair.substr(equals + 1));
    if (option.has_double_value() && IsInteger(pair.substr(equals + 1))) {
      return UsageError(argument, "must have integers of 64 bits, got '" + pair + "'");
    }
    (*map)[pair.substr(0, equals)] = option;
  }
  return absl::OkStatus();
}

}  // namespace penstock
