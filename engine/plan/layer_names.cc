#include "engine/plan/layer_names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/model/layer_source.h"

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

std::string ModuleOf(const LayerSpec& layer) {
  if (layer.program == nullptr) return "";
  const auto position = layer.options.find("layer");
  if (position == layer.options.end()) return "";
  return layer.program->module(static_cast<int>(std::get<int64_t>(position->second)));
}

}  // namespace

std::vector<size_t> LayersNamed(const std::string& name, const std::vector<LayerSpec>& layers) {
  std::vector<size_t> found;
  if (name.empty()) return found;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].name == name && ModuleOf(layers[i]) != name) return {i};
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string module = ModuleOf(layers[i]);
    if (module == name || absl::StartsWith(module, absl::StrCat(name, "."))) found.push_back(i);
  }
  return found;
}

std::string KnownLayers(const std::vector<LayerSpec>& layers, size_t first) {
  constexpr size_t kMaxNames = 12;
  std::vector<std::string> known;
  for (size_t i = first; i < layers.size() && known.size() < kMaxNames; ++i) known.push_back(layers[i].name);
  if (layers.size() > first + kMaxNames) known.emplace_back("...");
  return absl::StrJoin(known, ", ");
}

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
