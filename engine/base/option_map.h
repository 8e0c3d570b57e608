#pragma once

// Named settings of a model, a layer, an optimizer or a loss, as they come from a client: typed, checked, none ignored.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

using OptionValue = std::variant<bool, int64_t, double, std::string>;
using OptionMap = std::map<std::string, OptionValue>;

// An option's value as text, for error messages.
std::string OptionText(const OptionValue& value);

// Reads options one by one, keeps the first fault, and refuses names that were not read.
//
// Fails:     Finish() returns the first fault: SPEC_INVALID with field `path[name]` and the value.
// Example:   OptionReader reader(options, "spec.model.options");
//            const int64_t width = reader.Int("width", 256, 1, 65536);
//            PENSTOCK_RETURN_IF_ERROR(reader.Finish());
class OptionReader {
 public:
  OptionReader(const OptionMap& options, std::string path) : options_(options), path_(std::move(path)) {}

  // A whole number within [min, max]; the default if the option is absent.
  int64_t Int(const std::string& name, int64_t fallback, int64_t min, int64_t max);
  // The same, for an option that must be there.
  int64_t NeededInt(const std::string& name, int64_t min, int64_t max);
  // A finite number within [min, max]; whole numbers are accepted.
  double Double(const std::string& name, double fallback, double min, double max);
  bool Bool(const std::string& name, bool fallback);
  std::string Text(const std::string& name, const std::string& fallback);
  bool Has(const std::string& name) const { return options_.count(name) != 0; }
  // A fault that only the caller can see, such as two options that don't go together.
  void Refuse(const std::string& name, const std::string& problem);

  // The first fault, or an unknown name, or OK.
  absl::Status Finish();

 private:
  const OptionValue* Find(const std::string& name);

  const OptionMap& options_;
  const std::string path_;
  std::set<std::string> read_;
  absl::Status first_;
};

}  // namespace penstock
