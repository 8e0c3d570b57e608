#include "engine/plan/layer_names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr size_t kMaxShown = 128;  // characters of what a client wrote

absl::Status OutOfRange(const std::string& field, const std::string& problem, const std::string& value) {
  const std::string shown = value.substr(0, kMaxShown);
  return Error(absl::StatusCode::kOutOfRange, "FIELD_INVALID", absl::StrCat(field, ": ", problem, ", got ", shown))
      .With("field", field)
      .With("value", shown);
}

// A number without sign among `count`; -1 if it is none.
int PositionIn(absl::string_view text, size_t count) {
  int position = 0;
  const bool number =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number && absl::SimpleAtoi(text, &position) && position < static_cast<int>(count) ? position : -1;
}

// The layer that `text` begins with, by name; a name may have points itself.
const std::string* LayerNamed(const std::vector<std::string>& layers, absl::string_view text) {
  for (const std::string& layer : layers) {
    if (text.size() > layer.size() && text.substr(0, layer.size()) == layer && text[layer.size()] == '.') return &layer;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<LayerPlan> LayerAt(const Plan& plan, int64_t index) {
  const auto count = static_cast<int64_t>(plan.layers.size());
  if (index < -count || index >= count) {
    return OutOfRange("index", absl::StrCat("there are ", count, " layers"), absl::StrCat(index));
  }
  return plan.layers[index < 0 ? index + count : index];
}

absl::StatusOr<std::string> FromPartitionName(const Plan& plan, const std::string& name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "partitions.")) return name;
  const size_t end = rest.find('.');
  const int stage = PositionIn(rest.substr(0, end), plan.stages.size());
  if (stage < 0 || end == absl::string_view::npos) {
    return OutOfRange("names", absl::StrCat("must be partitions.J.K.parameter with J below ", plan.stages.size()),
                      name);
  }
  rest.remove_prefix(end + 1);
  const std::vector<std::string>& layers = plan.stages[stage].layers;
  if (LayerNamed(layers, rest) != nullptr) return std::string(rest);
  const size_t point = rest.find('.');
  const int layer = PositionIn(rest.substr(0, point), layers.size());
  if (layer < 0 || point == absl::string_view::npos) {
    return OutOfRange("names",
                      absl::StrCat("must be partitions.", stage, ".K.parameter with K below ", layers.size(),
                                   " or the name of a layer there"),
                      name);
  }
  return absl::StrCat(layers[layer], rest.substr(point));
}

}  // namespace penstock
