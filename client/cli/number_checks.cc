#include "client/cli/number_checks.h"

#include <string>

#include "absl/strings/numbers.h"

namespace penstock {
namespace {

CLI::Validator Check(const char* name, const char* wanted, bool (*holds)(double)) {
  return CLI::Validator(
      [wanted, holds](const std::string& text) {
        double value = 0;
        const bool good = absl::SimpleAtod(text, &value) && holds(value);
        return good ? std::string() : std::string("must be a number ") + wanted + ", got " + text;
      },
      name);
}

}  // namespace

CLI::Validator Positive() {
  return Check("POSITIVE", "above 0", [](double value) { return value > 0; });
}

CLI::Validator NonNegative() {
  return Check("NONNEGATIVE", "of at least 0", [](double value) { return value >= 0; });
}

}  // namespace penstock
