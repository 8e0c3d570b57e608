#include "engine/exec/partition_keys.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr absl::string_view kOptimizer = "optimizer/";

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Puts `to` in the place of `from` at the beginning of a tensor's name, if it stands there.
bool Replace(const std::string& from, const std::string& to, absl::string_view name, std::string& result) {
  absl::string_view rest = name;
  const absl::string_view before = absl::ConsumePrefix(&rest, kOptimizer) ? kOptimizer : absl::string_view();
  if (!absl::ConsumePrefix(&rest, from)) return false;
  result = absl::StrCat(before, to, rest);
  return true;
}

}  // namespace

absl::StatusOr<LayerPlan> LayerAt(const Plan& plan, int64_t index) {
  const auto count = static_cast<int64_t>(plan.layers.size());
  const int64_t place = index < 0 ? index + count : index;
  if (place >= 0 && place < count) return plan.layers[place];
  return Error(absl::StatusCode::kOutOfRange, "FIELD_INVALID",
               absl::StrCat("index: must be within the ", count, " layers, got ", index))
      .With("field", "index")
      .With("value", absl::StrCat(index));
}

std::string PartitionKey(const Plan& plan, std::string_view name) {
  std::string key;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const std::vector<std::string>& layers = plan.stages[j].layers;
    for (size_t k = 0; k < layers.size(); ++k) {
      if (Replace(layers[k] + ".", absl::StrCat("partitions.", j, ".", k, "."), View(name), key)) return key;
    }
  }
  return std::string(name);
}

std::string LayerKey(const Plan& plan, std::string_view key) {
  std::string name;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const std::vector<std::string>& layers = plan.stages[j].layers;
    for (size_t k = 0; k < layers.size(); ++k) {
      const std::string own = layers[k] + ".";
      if (Replace(own, own, View(key), name)) return name;  // a layer may be called `partitions`
    }
  }
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    const std::vector<std::string>& layers = plan.stages[j].layers;
    for (size_t k = 0; k < layers.size(); ++k) {
      const std::string partition = absl::StrCat("partitions.", j, ".");
      if (Replace(absl::StrCat(partition, k, "."), layers[k] + ".", View(key), name)) return name;
      if (Replace(absl::StrCat(partition, layers[k], "."), layers[k] + ".", View(key), name)) return name;
    }
  }
  return std::string(key);
}

}  // namespace penstock
