#pragma once

// Why a reservation was refused. Private to the ledger.

#include <string>
#include <utility>
#include <vector>

#include "engine/ledger/memory_ledger.h"

namespace penstock {

struct MemoryLedger::Refused {
  MemoryHolder asking;
  int64_t asked = 0;                 // bytes, beside what the reservation holds
  const MemoryPool* pool = nullptr;  // whose bound it is; null: the ledger's
  bool share = false;                // of the identity, in the pool
  int64_t limit = 0;
  int64_t used = 0;  // of the limit
  int64_t free = 0;
  std::vector<std::pair<MemoryHolder, int64_t>> holders;  // in no order
};

}  // namespace penstock
