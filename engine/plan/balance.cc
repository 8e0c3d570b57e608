#include "engine/plan/balance.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/plan/partition.h"
#include "engine/plan/spec_error.h"

namespace penstock {
namespace {

// Random rows of up to 60 elements that stop at all need fewer than n*k/2 moves.
constexpr int kMovesPerElementAndBlock = 4;

absl::Status Refuse(const std::string& problem, int parts) {
  return RefuseSpec("spec.cut.stages", problem, absl::StrCat(parts));
}

std::vector<double> Normalised(const std::vector<double>& costs) {
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  const double range = *most - *least;
  std::vector<double> normalised;
  for (double cost : costs) normalised.push_back(range == 0 ? 0 : (cost - *least) / range);
  return normalised;
}

// The blocks while elements move. Block i ends before element ends_[i] and begins where block i-1 ends; it is empty if
// that is not before its own end.
class Blocks {
 public:
  Blocks(std::vector<double> costs, int parts) : costs_(std::move(costs)), ends_(parts), sizes_(parts) {
    const int count = static_cast<int>(costs_.size());
    for (int i = 0; i < parts; ++i) ends_[i] = i + 1 < parts ? count / parts * (i + 1) : count;
    for (int i = 0; i < parts; ++i) Sum(i);
  }

  // Of equals the last.
  int Largest() const { return static_cast<int>(sizes_.rend() - std::max_element(sizes_.rbegin(), sizes_.rend())) - 1; }
  // Of equals the first.
  int Smallest() const { return static_cast<int>(std::min_element(sizes_.begin(), sizes_.end()) - sizes_.begin()); }
  double size(int block) const { return sizes_[block]; }

  // Moves the boundary between two neighbours, `step` elements to the right.
  void Move(int boundary, int step) {
    ends_[boundary] += step;
    Sum(boundary);
    Sum(boundary + 1);
  }
  bool Inside(int boundary) const { return ends_[boundary] >= 0 && ends_[boundary] <= static_cast<int>(costs_.size()); }
  std::vector<int> Lengths() const {
    std::vector<int> lengths;
    for (size_t i = 0; i < ends_.size(); ++i) lengths.push_back(ends_[i] - Begin(i));
    return lengths;
  }

 private:
  int Begin(size_t block) const { return block == 0 ? 0 : ends_[block - 1]; }
  // Always summed from the left, as rounding decides some cuts.
  void Sum(int block) {
    sizes_[block] = 0;
    for (int i = std::max(0, Begin(block)); i < ends_[block] && i < static_cast<int>(costs_.size()); ++i) {
      sizes_[block] += costs_[i];
    }
  }

  const std::vector<double> costs_;  // normalised
  std::vector<int> ends_;
  std::vector<double> sizes_;
};

// Nothing if the moves never come to an end, or leave the row.
std::vector<int> MoveUntilEven(Blocks blocks, int64_t max_moves) {
  int p = blocks.Largest();
  double largest = blocks.size(p);
  for (int64_t moves = 0; moves <= max_moves; ++moves) {
    const int q = blocks.Smallest();
    if (largest <= blocks.size(q) + 1) return blocks.Lengths();
    const int neighbour = p < q ? q - 1 : q + 1;  // gives its element next to q
    const int boundary = std::min(q, neighbour);
    blocks.Move(boundary, p < q ? -1 : 1);
    if (!blocks.Inside(boundary)) return {};
    if (neighbour == p) {
      p = blocks.Largest();
      largest = blocks.size(p);
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<std::vector<int>> BlockPartition(const std::vector<double>& costs, int parts) {
  const int count = static_cast<int>(costs.size());
  if (parts < 1) return Refuse(absl::StrCat("partitions must be a positive integer (", parts, " < 1)"), parts);
  if (count < parts) {
    return Refuse(absl::StrCat("sequence is shorter than intended partitions (", count, " < ", parts, ")"), parts);
  }
  const std::vector<int> lengths =
      MoveUntilEven(Blocks(Normalised(costs), parts), int64_t{kMovesPerElementAndBlock} * count * parts);
  const bool whole = !lengths.empty() && std::all_of(lengths.begin(), lengths.end(), [](int n) { return n > 0; });
  if (whole) return lengths;
  return PartitionExactly({.costs = costs, .boundary_bytes = std::vector<int64_t>(costs.size(), 0)}, parts);
}

}  // namespace penstock
