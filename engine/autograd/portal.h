#pragma once

// Holds skip values past the stages between stash and pop, no longer than somebody still needs them.
// Source: portals of torchgpipe (Kim et al., "torchgpipe", 2020, section 4.2.1), whose life counts these are.

#include <utility>

#include "engine/tensor/batch.h"

namespace penstock {

// The values that one stage has stashed for another in one micro-batch.
//
// Model:     `life` uses are left. It starts at 3 for a checkpointed micro-batch: the stash, the pop of the forward and
//            the pop of the recomputation use it; at 2 without recomputation. At 0 the values are dropped. The gradient
//            is there for one use.
// Threads:   one at a time.
// Fails:     Look, Use and TakeGradient throw (RunTorch) INTERNAL / BUG.
class Portal {
 public:
  static constexpr int kCheckpointed = 3;
  static constexpr int kPlain = 2;

  Portal() = default;
  Portal(Batch values, int life) : values_(std::move(values)), life_(life) {}

  // The values, without taking a life. Throws as Use.
  const Batch& Look() const;
  // The values; takes one life. Throws "tensor in portal has been removed" if none is left.
  Batch Use();
  int life() const { return life_; }

  void PutGradient(Batch gradient);
  // Throws "grad in portal has been removed or never set".
  Batch TakeGradient();

 private:
  Batch values_;
  int life_ = 0;
  Batch gradient_;
  bool has_gradient_ = false;
};

}  // namespace penstock
