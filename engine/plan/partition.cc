#include "engine/plan/partition.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/plan/spec_error.h"

namespace penstock {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr int64_t kUnreachable = std::numeric_limits<int64_t>::max();

class ExactCut {
 public:
  ExactCut(const PartitionInput& input, int stages, bool limited)
      : input_(input),
        layers_(static_cast<int>(input.costs.size())),
        stages_(stages),
        limited_(limited && input.fits != nullptr),
        prefix_(layers_ + 1, 0),
        popped_by_(layers_) {
    for (int i = 0; i < layers_; ++i) prefix_[i + 1] = prefix_[i] + input.costs[i];
    for (const SkipBytes& skip : input.skips) popped_by_[skip.popped_by].push_back(skip);
  }

  // The least cost of the most expensive stage; kImpossible if no cut fits.
  double Bottleneck() const {
    std::vector<double> behind(layers_ + 1, kImpossible);
    behind[layers_] = 0;
    for (int left = 1; left <= stages_; ++left) {
      std::vector<double> least(layers_ + 1, kImpossible);
      for (int begin = 0; begin + left <= layers_; ++begin) {
        ForEachRange(begin, left, [&](int end, double cost, int64_t) {
          least[begin] = std::min(least[begin], std::max(cost, behind[end]));
        });
      }
      behind = std::move(least);
    }
    return behind[0];
  }

  // Layers per stage: the fewest bytes, then the earliest cuts, of all cuts within the bottleneck.
  std::vector<int> Balance(double bottleneck) const {
    std::vector<int64_t> behind(layers_ + 1, kUnreachable);
    behind[layers_] = 0;
    std::vector<std::vector<int>> choice(stages_ + 1, std::vector<int>(layers_ + 1, 0));
    for (int left = 1; left <= stages_; ++left) {
      std::vector<int64_t> fewest(layers_ + 1, kUnreachable);
      for (int begin = 0; begin + left <= layers_; ++begin) {
        ForEachRange(begin, left, [&](int end, double cost, int64_t bytes) {
          if (cost > bottleneck || behind[end] == kUnreachable || bytes + behind[end] >= fewest[begin]) return;
          fewest[begin] = bytes + behind[end];
          choice[left][begin] = end;
        });
      }
      behind = std::move(fewest);
    }
    std::vector<int> balance;
    for (int left = stages_, begin = 0; left > 0; --left) {
      balance.push_back(choice[left][begin] - begin);
      begin = choice[left][begin];
    }
    return balance;
  }

 private:
  // Calls visit(end, cost, entering bytes) for every range that begins here and leaves enough layers for the stages
  // behind it, shortest first. `left` counts this stage and those behind it.
  template <typename Visit>
  void ForEachRange(int begin, int left, Visit visit) const {
    int64_t entering = begin == 0 ? 0 : input_.boundary_bytes[begin - 1];
    for (int end = begin + 1; end + left - 1 <= layers_; ++end) {
      for (const SkipBytes& skip : popped_by_[end - 1]) {
        if (skip.stashed_by < begin) entering += skip.bytes;
      }
      if (left == 1 && end < layers_) continue;
      const bool fits = !limited_ || input_.fits(stages_ - left, begin, end);
      const double cost = prefix_[end] - prefix_[begin] + CostOfEntering(stages_ - left, entering);
      visit(end, fits ? cost : kImpossible, entering);
    }
  }

  double CostOfEntering(int stage, int64_t bytes) const {
    return input_.cost_of_entering ? input_.cost_of_entering(stage, bytes)
                                   : static_cast<double>(bytes) * input_.cost_per_byte;
  }

  const PartitionInput& input_;
  const int layers_;
  const int stages_;
  const bool limited_;
  std::vector<double> prefix_;
  std::vector<std::vector<SkipBytes>> popped_by_;
};

}  // namespace

absl::StatusOr<std::vector<int>> PartitionExactly(const PartitionInput& input, int stages) {
  const int layers = static_cast<int>(input.costs.size());
  if (stages < 1 || stages > layers) {
    return RefuseSpec("spec.cut.stages", absl::StrCat("must lie in [1, ", layers, "], the number of layers"),
                      absl::StrCat(stages));
  }
  const ExactCut limited(input, stages, true);
  const double bottleneck = limited.Bottleneck();
  if (bottleneck < kImpossible) return limited.Balance(bottleneck);
  const ExactCut anywhere(input, stages, false);
  return anywhere.Balance(anywhere.Bottleneck());
}

}  // namespace penstock
