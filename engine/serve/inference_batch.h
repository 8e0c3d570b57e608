#pragma once

// Calls of inference that run as one.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/serve/call.h"

namespace penstock {

// What a queue gives to run at once: calls of one key, in the order of their rows; or one by itself.
//
// Threads:   whoever runs it; the queue under its lock. `calls` never changes once it runs.
struct InferenceBatch {
  std::vector<CallPointer> calls = {};
  bool merges = false;           // its calls have a key: it takes one of the places of batches
  bool holds_place = false;      // and it has not given it back; the queue's
  int64_t number = 0;            // of the queue's runs, from 1
  int64_t rows = 0;              // of a batch that has run as one
  bool counts = false;           // of a batch that has run as one: a call of it has succeeded
  int64_t end_nanos = 0;         // of a batch, when its stages were done; 0: its calls run by themselves
  std::atomic<size_t> left = 0;  // of its calls, where each runs by itself after all
};
using BatchPointer = std::shared_ptr<InferenceBatch>;

}  // namespace penstock
