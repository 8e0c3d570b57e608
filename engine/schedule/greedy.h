#pragma once

// A schedule made by playing it: at every moment the rank that can start soonest takes what its rule prefers.

#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// What a rank prefers.
struct GreedyRule {
  bool input_first = true;  // an input gradient before a forward that could start at the same time

  // A weight gradient fills a gap of at least so many halves of its cost; shorter gaps stay idle.
  int least_gap = 2;
};

// One chunk per rank, split backwards, at most `live_limit` activations on each rank. Always runs to its end: a rank at
// its limit has weight gradients left to do, or waits for a gradient that is on its way.
//
// Units:     `costs` one per rank, valid by CheckCosts; `live_limit` at least 1. Takes time in O(actions * ranks).
// Source: after the heuristic scheduler of sail-sg/zero-bubble-pipeline-parallelism.
Schedule PlayGreedily(int ranks, int microbatches, int live_limit, const ScheduleCosts& costs, GreedyRule rule);

}  // namespace penstock
