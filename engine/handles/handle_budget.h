#pragma once

// How much handles may hold, in all and per owner.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "engine/ledger/memory_ledger.h"

namespace penstock {

// Counts handles, and refuses what goes beyond the limits. Their bytes are the memory ledger's (HandlePool).
//
// Model:     A number for the server and for each owner that has any.
// Threads:   Those of its owner: the HandleStore holds its lock around every call.
// Fails:     RESOURCE_EXHAUSTED / HANDLE_BUDGET naming the limit, its value and what was asked; the
//            counts are then as before.
class HandleBudget {
 public:
  struct Limits {
    int64_t handles = 65'536;
    int64_t handles_per_owner = 10'000;
    int64_t bytes = int64_t{4} << 30;
    int64_t bytes_per_owner = int64_t{2} << 30;
  };

  explicit HandleBudget(Limits limits) : limits_(limits) {}

  // Adds a handle, or refuses it.
  absl::Status Charge(const std::string& owner);
  // Gives back what Charge() took. Takes no memory.
  void Refund(const std::string& owner);

 private:
  const Limits limits_;
  int64_t total_ = 0;
  std::map<std::string, int64_t> owners_;
};

// What bounds the bytes of results and of uploads on their way: no other memory takes their room.
MemoryPool HandlePool(const HandleBudget::Limits& limits);

}  // namespace penstock
