#include "engine/plan/partition.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

// The best way to put the first layers on some stages.
struct Best {
  double bottleneck = std::numeric_limits<double>::infinity();
  int64_t crossing_bytes = 0;
  int cut = -1;  // layers on all stages but the last
};

}  // namespace

absl::StatusOr<std::vector<int>> PartitionExactly(const PartitionInput& input, int stages) {
  const int layers = static_cast<int>(input.costs.size());
  if (stages < 1 || stages > layers) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.cut.stages: must lie in [1, ", layers, "], the number of layers, got ", stages))
        .With("field", "spec.cut.stages")
        .With("value", absl::StrCat(stages));
  }
  std::vector<double> prefix(layers + 1, 0);
  for (int i = 0; i < layers; ++i) prefix[i + 1] = prefix[i] + input.costs[i];

  std::vector<std::vector<Best>> best(stages + 1, std::vector<Best>(layers + 1));
  best[0][0].bottleneck = 0;
  for (int k = 1; k <= stages; ++k) {
    for (int i = k; i <= layers; ++i) {
      for (int j = k - 1; j < i; ++j) {  // ascending: of equals the earliest cut stays
        const Best& before = best[k - 1][j];
        const double bottleneck = std::max(before.bottleneck, prefix[i] - prefix[j]);
        const int64_t bytes = before.crossing_bytes + (j > 0 ? input.boundary_bytes[j - 1] : 0);
        Best& current = best[k][i];
        if (std::tie(bottleneck, bytes) < std::tie(current.bottleneck, current.crossing_bytes)) {
          current = {bottleneck, bytes, j};
        }
      }
    }
  }
  std::vector<int> balance(stages);
  for (int k = stages, i = layers; k > 0; --k) {
    balance[k - 1] = i - best[k][i].cut;
    i = best[k][i].cut;
  }
  return balance;
}

}  // namespace penstock
