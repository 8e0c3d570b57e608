#pragma once

// How the memory that a daemon may reserve is shared out.

#include <cstdint>
#include <vector>

#include "engine/handles/handle_budget.h"
#include "engine/ledger/memory_ledger.h"
#include "server/daemon_options.h"

namespace penstock {

// What results may have of `memory_limit` bytes: as the options say, else a tenth, and half of that for each caller.
HandleBudget::Limits HandleLimits(const DaemonOptions& options, int64_t memory_limit);

// Results have room of their own, and so have the messages and tensors of calls, and saves: a daemon whose pipelines fill
// all the rest still works. `message_bytes`: what messages may have together.
std::vector<MemoryPool> MemoryPools(int64_t limit, int64_t message_bytes, const HandleBudget::Limits& handles);

}  // namespace penstock
