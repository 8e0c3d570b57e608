#include "client/cli/row_order.h"

#include <numeric>
#include <utility>

#include "client/cli/split_mix.h"

namespace penstock {

std::span<const int64_t> RowOrder::BatchOf(int64_t number) {
  const int64_t per_epoch = rows_ / batch_;
  if (const int64_t epoch = number / per_epoch; epoch != drawn_) Draw(epoch);
  const auto first = static_cast<size_t>(number % per_epoch * batch_);
  return std::span<const int64_t>(order_).subspan(first, static_cast<size_t>(batch_));
}

void RowOrder::Draw(int64_t epoch) {
  order_.resize(static_cast<size_t>(rows_));
  std::iota(order_.begin(), order_.end(), 0);
  const uint64_t key = SplitMix(SplitMix(seed_) ^ static_cast<uint64_t>(epoch));
  for (uint64_t place = order_.size() - 1; place > 0; --place) {
    std::swap(order_[place], order_[SplitMix(key ^ place) % (place + 1)]);
  }
  drawn_ = epoch;
}

}  // namespace penstock
