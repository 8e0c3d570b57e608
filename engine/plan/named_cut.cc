#include "engine/plan/named_cut.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/layer_source.h"
#include "engine/plan/spec_error.h"

namespace penstock {
namespace {

std::string ModuleOf(const LayerSpec& layer) {
  if (layer.program == nullptr) return "";
  const auto position = layer.options.find("layer");
  if (position == layer.options.end()) return "";
  return layer.program->module(static_cast<int>(std::get<int64_t>(position->second)));
}

// The first layer that the name means, or the number of layers.
size_t FindStart(const std::string& name, const std::vector<LayerSpec>& layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].name == name) return i;
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string module = ModuleOf(layers[i]);
    if (module == name || absl::StartsWith(module, absl::StrCat(name, "."))) return i;
  }
  return layers.size();
}

}  // namespace

absl::StatusOr<CutSpec> WithBalance(CutSpec cut, const std::vector<LayerSpec>& layers) {
  if (cut.starts.empty()) return cut;
  if (!cut.balance.empty()) {
    return RefuseSpec("spec.cut.balance", "must not be given beside names of first layers",
                      absl::StrCat("[", absl::StrJoin(cut.balance, ", "), "]"));
  }
  if (cut.stages != 0) {
    return RefuseSpec("spec.cut.stages", "must not be given beside names of first layers", absl::StrCat(cut.stages));
  }
  size_t begin = 0;
  for (size_t i = 0; i < cut.starts.size(); ++i) {
    const std::string field = absl::StrCat("spec.cut.starts[", i, "]");
    const size_t start = FindStart(cut.starts[i], layers);
    if (start == layers.size()) {
      constexpr size_t kMaxNames = 12;
      std::vector<std::string> known;
      for (size_t l = 1; l < layers.size() && known.size() < kMaxNames; ++l) known.push_back(layers[l].name);
      if (layers.size() > kMaxNames + 1) known.emplace_back("...");
      return RefuseSpec(field, absl::StrCat("begins no layer; known are ", absl::StrJoin(known, ", ")),
                        Shortened(cut.starts[i]));
    }
    if (start <= begin) {
      const char* problem = start == 0 ? "is where the first stage begins, which is not to be named"
                                       : "must come behind the name before it";
      return RefuseSpec(field, problem, Shortened(cut.starts[i]));
    }
    cut.balance.push_back(static_cast<int>(start - begin));
    begin = start;
  }
  cut.balance.push_back(static_cast<int>(layers.size() - begin));
  cut.starts.clear();
  return cut;
}

}  // namespace penstock
