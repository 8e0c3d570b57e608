#include "client/cli/json_fault.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/message_json.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

// Looks at the names and numbers of a text, and builds nothing. Each event returns whether to go on.
class FaultFinder : public nlohmann::json_sax<Json> {
 public:
  std::string fault;

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    fault = absl::StrCat("has the name ", Shortened(name), " twice");
    return false;
  }
  bool number_float(number_float_t, const string_t& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return true;
    fault = absl::StrCat("must have integers of 64 bits, got ", Shortened(text));
    return false;
  }
  bool start_object(size_t) override {
    names_.emplace_back();
    return true;
  }
  bool end_object() override {
    names_.pop_back();
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> names_;  // of the objects that are open
};

}  // namespace

std::string JsonFault(std::string_view text) {
  FaultFinder finder;
  Json::sax_parse(text, &finder);
  return finder.fault;
}

}  // namespace penstock
