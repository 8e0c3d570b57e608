#pragma once

// Where skip tensors go once the layers are cut: which stage hands which names to which stage.
//
// After the ancestors' skip layout (torchgpipe v0.0.7, skip/layout.py), with the order of names fixed: that in which
// the stashing layers declare them.

#include <cstdint>
#include <vector>

#include "engine/model/skip_spec.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// A skip of a route that need not take it, for it is an input or an output of the whole model.
struct StraightValue {
  int item = 0;      // among the route's names
  int position = 0;  // among the model's inputs, or outputs

  bool operator==(const StraightValue&) const = default;
};

// The skips that travel from one stage to another, as one message per micro-batch each way.
struct SkipRoute {
  SkipEdge edge;
  std::vector<SkipName> names;              // in the order in which they are stashed
  int64_t bytes = 0;                        // of one micro-batch, without what goes straight; 0 if nothing was measured
  std::vector<StraightValue> inputs = {};   // that come to the later stage from the caller
  int64_t held_bytes = 0;                   // of those, of one micro-batch, at the later stage
  std::vector<StraightValue> outputs = {};  // that leave the earlier one to the caller

  bool operator==(const SkipRoute&) const = default;
};

// One route per pair of stages that skips cross, sorted by (to, from); skips within a stage need none. `skips` has one
// entry per layer, or is empty; `first_layers` has the first layer of each stage, ascending from 0.
//
// What has no partner is left out: whether stashes and pops match is checked with the model, not here.
std::vector<SkipRoute> LayOutSkips(const std::vector<SkipDeclaration>& skips, const std::vector<int>& first_layers);

}  // namespace penstock
