#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The rows of each mini-batch, shuffled anew in each epoch.
//
// Model:     An epoch is a permutation of all rows, drawn by Fisher and Yates from a generator that is keyed by (seed,
//            epoch, place). It is cut into mini-batches; what is too few for a whole one at its end is left out, other
//            rows in each epoch. So a mini-batch is the same one in every run, whichever came before.
// Owns:      8 bytes for each row.
// Threads:   one.
class RowOrder {
 public:
  // `batch` is 1 to `rows`.
  RowOrder(int64_t rows, int64_t batch, uint64_t seed) : rows_(rows), batch_(batch), seed_(seed) {}

  // Until the next call.
  std::span<const int64_t> BatchOf(int64_t number);

 private:
  void Draw(int64_t epoch);

  const int64_t rows_;
  const int64_t batch_;
  const uint64_t seed_;
  int64_t drawn_ = -1;  // the epoch of `order_`
  std::vector<int64_t> order_;
};

}  // namespace penstock
