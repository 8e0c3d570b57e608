#include "engine/base/option_map.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

// With as few digits as tell the number from its neighbours: a bound just below 1 is not shown as 1.
std::string NumberText(double number) {
  constexpr int kEnoughDigits = std::numeric_limits<double>::max_digits10;
  std::string text;
  for (int digits = 6; digits <= kEnoughDigits; ++digits) {
    text = absl::StrFormat("%.*g", digits, number);
    double read = 0;
    if (absl::SimpleAtod(text, &read) && read == number) break;
  }
  return text;
}

}  // namespace

std::string OptionText(const OptionValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return absl::StrCat(*whole);
  if (const double* number = std::get_if<double>(&value)) {
    const std::string text = NumberText(*number);
    // So that it is not taken for an int64.
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
  return std::get<std::string>(value);
}

const OptionValue* OptionReader::Find(const std::string& name) {
  read_.insert(name);
  auto found = options_.find(name);
  return found == options_.end() ? nullptr : &found->second;
}

void OptionReader::Refuse(const std::string& name, const std::string& problem) {
  if (!first_.ok()) return;
  const std::string field = absl::StrCat(path_, "[", name, "]");
  const auto given = options_.find(name);
  const std::string value = given == options_.end() ? "nothing" : OptionText(given->second);
  first_ =
      Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
          .With("field", field)
          .With("value", value);
}

int64_t OptionReader::Int(const std::string& name, int64_t fallback, int64_t min, int64_t max) {
  const OptionValue* value = Find(name);
  if (value == nullptr) return fallback;
  const int64_t* whole = std::get_if<int64_t>(value);
  if (whole == nullptr) {
    Refuse(name, "must be a whole number, without a point or an exponent");
    return fallback;
  }
  if (*whole < min || *whole > max) {
    Refuse(name, absl::StrCat("must lie in [", min, ", ", max, "]"));
    return fallback;
  }
  return *whole;
}

int64_t OptionReader::NeededInt(const std::string& name, int64_t min, int64_t max) {
  if (!Has(name)) Refuse(name, "is needed");
  return Int(name, min, min, max);
}

double OptionReader::Double(const std::string& name, double fallback, double min, double max) {
  const OptionValue* value = Find(name);
  if (value == nullptr) return fallback;
  double number;
  if (const double* real = std::get_if<double>(value)) {
    number = *real;
  } else if (const int64_t* whole = std::get_if<int64_t>(value)) {
    number = static_cast<double>(*whole);
  } else {
    Refuse(name, "must be a number");
    return fallback;
  }
  if (!std::isfinite(number) || number < min || number > max) {
    Refuse(name, absl::StrCat("must lie in [", NumberText(min), ", ", NumberText(max), "]"));
    return fallback;
  }
  return number;
}

bool OptionReader::Bool(const std::string& name, bool fallback) {
  const OptionValue* value = Find(name);
  if (value == nullptr) return fallback;
  const bool* flag = std::get_if<bool>(value);
  if (flag == nullptr) {
    Refuse(name, "must be true or false");
    return fallback;
  }
  return *flag;
}

std::string OptionReader::Text(const std::string& name, const std::string& fallback) {
  const OptionValue* value = Find(name);
  if (value == nullptr) return fallback;
  const std::string* text = std::get_if<std::string>(value);
  if (text == nullptr) {
    Refuse(name, "must be a text");
    return fallback;
  }
  return *text;
}

absl::Status OptionReader::Finish() {
  if (!first_.ok()) return first_;
  for (const auto& [name, value] : options_) {
    if (read_.count(name) == 0) {
      Refuse(name, absl::StrCat("is not known; known are ", absl::StrJoin(read_, ", ")));
      return first_;
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
