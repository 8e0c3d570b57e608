#include "engine/observe/trace_ring.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"

namespace penstock {

TraceRing::TraceRing(int64_t events)
    : mask_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(events, 16))) - 1),
      words_(events > 0 ? static_cast<uint64_t*>(std::calloc((mask_ + 1) * kWords, sizeof(uint64_t))) : nullptr) {
  PENSTOCK_CHECK(events <= 0 || words_ != nullptr);
}

uint64_t TraceRing::dropped() const {
  const uint64_t total = written();
  return total > mask_ + 1 ? total - (mask_ + 1) : 0;
}

bool TraceRing::ReadOne(uint64_t number, TraceRecord* record) const {
  uint64_t* slot = &words_[(number & mask_) * kWords];
  if (Word(slot[0]).load(std::memory_order_acquire) != 2 * number + 2) return false;
  const auto get = [&](int i) { return Word(slot[i]).load(std::memory_order_acquire); };
  record->begin_nanos = static_cast<int64_t>(get(1));
  record->end_nanos = static_cast<int64_t>(get(2));
  const uint64_t bits = get(3);
  record->kind = static_cast<TraceKind>(bits & 0xff);
  record->detail = static_cast<uint8_t>(bits >> 8);
  record->inference = (bits >> 16 & 1) != 0;
  record->failed = (bits >> 17 & 1) != 0;
  record->lane = static_cast<int16_t>(bits >> 32);
  record->peer = static_cast<int16_t>(bits >> 48);
  const uint64_t place = get(4);
  record->stage = static_cast<int32_t>(place >> 32);
  record->micro_batch = static_cast<int32_t>(place);
  record->step = static_cast<int64_t>(get(5));
  record->run = static_cast<int64_t>(get(6));
  record->correlation = get(7);
  return Word(slot[0]).load(std::memory_order_relaxed) == 2 * number + 2;
}

uint64_t TraceRing::Read(uint64_t from, uint64_t to, std::vector<TraceRecord>* out) const {
  const uint64_t total = written();
  to = std::min(to, total);
  if (from >= to) return 0;
  const size_t before = out->size();
  const uint64_t oldest = total > mask_ + 1 ? total - (mask_ + 1) : 0;
  uint64_t lost = std::min(oldest > from ? oldest - from : 0, to - from);
  out->reserve(before + (to - from - lost));
  for (uint64_t number = from + lost; number < to; ++number) {
    TraceRecord record;
    if (ReadOne(number, &record)) {
      out->push_back(record);
    } else {  // overwritten meanwhile, and so is everything before it
      out->resize(before);
      lost = number + 1 - from;
    }
  }
  return lost;
}

uint64_t MessageCorrelation(int64_t run, bool gradient, int stage, int micro_batch, int peer) {
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (const int64_t part : {run, int64_t{gradient}, int64_t{stage}, int64_t{micro_batch}, int64_t{peer}}) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash | 1;  // never 0
}

}  // namespace penstock
