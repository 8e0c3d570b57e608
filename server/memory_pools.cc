#include "server/memory_pools.h"

#include <algorithm>

namespace penstock {

HandleBudget::Limits HandleLimits(const DaemonOptions& options, int64_t memory_limit) {
  HandleBudget::Limits limits;
  limits.handles = options.max_handles;
  limits.handles_per_owner = options.max_handles_per_caller;
  limits.bytes = options.handle_bytes > 0 ? options.handle_bytes : memory_limit / 10;
  limits.bytes_per_owner = options.handle_bytes_per_caller > 0 ? options.handle_bytes_per_caller : limits.bytes / 2;
  return limits;
}

std::vector<MemoryPool> MemoryPools(int64_t limit, int64_t message_bytes, const HandleBudget::Limits& handles) {
  const int64_t kept = std::min(limit / 32, (limit - handles.bytes) / 3);
  const int64_t messages = std::min(limit, message_bytes);
  return {HandlePool(handles),
          {.classes = {MemoryClass::kMessages},
           .flag = "grpc-memory-bytes",
           .limit_bytes = messages,
           .kept_bytes = std::min(kept, messages)},
          {.classes = {MemoryClass::kInputs, MemoryClass::kQueues},
           .flag = "memory-limit",
           .limit_bytes = limit,
           .kept_bytes = kept},
          {.classes = {MemoryClass::kSnapshots}, .flag = "memory-limit", .limit_bytes = limit, .kept_bytes = kept}};
}

}  // namespace penstock
