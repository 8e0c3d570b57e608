#include "engine/plan/named_cut.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/plan/layer_names.h"
#include "engine/plan/spec_error.h"

namespace penstock {
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
    const std::vector<size_t> named = LayersNamed(cut.starts[i], layers);
    if (named.empty()) {
      return RefuseSpec(field, absl::StrCat("begins no layer; known are ", KnownLayers(layers, 1)),
                        Shortened(cut.starts[i]));
    }
    const size_t start = named.front();
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
