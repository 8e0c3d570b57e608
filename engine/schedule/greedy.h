#pragma once

// A schedule made by playing it: at every moment the lane that can start soonest takes what its rule prefers.

#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// What a lane prefers.
struct GreedyRule {
  bool input_first = true;  // an input gradient before a forward that could start at the same time

  // A weight gradient fills a gap of at least so many halves of its cost; shorter gaps stay idle.
  int min_gap = 2;
};

// One chunk per lane, split backwards, at most `live_limit` activations on each lane. Always runs to its end: a lane at
// its limit has weight gradients left to do, or waits for a gradient that is on its way.
//
// Units:     `costs` one per lane, valid by CheckCosts; `live_limit` at least 1. Takes time in O(actions * lanes).
// Source: after the heuristic scheduler of sail-sg/zero-bubble-pipeline-parallelism.
Schedule PlayGreedily(int lanes, int micro_batches, int live_limit, const ScheduleCosts& costs, GreedyRule rule);

}  // namespace penstock
