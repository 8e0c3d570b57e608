#pragma once

// Randomness that depends on what is computed, not on when or where: a generator for each (seed, step, micro-batch,
// layer) and draw within the layer. A recomputation repeats the forward without saved state, and results don't depend
// on the cut.

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "engine/base/ids.h"

namespace penstock {

// Where something is drawn, and by which generator.
struct Draw {
  at::Generator generator;
  c10::Device device;
};

// Hands out generators for the draws of one layer in one pass over one micro-batch. Make a new one for every pass.
//
// Threads:   one at a time.
class KeyedRandom {
 public:
  KeyedRandom(uint64_t seed, StepId step, MicroBatchIndex micro_batch, LayerIndex layer)
      : seed_(seed), step_(step), micro_batch_(micro_batch), layer_(layer) {}

  // The generator of the next draw: the first call of a pass is draw 0, and so on.
  at::Generator Next() { return NextFor(c10::kCPU).generator; }
  // The same for a tensor of `device`. A GPU draws by itself: the same numbers wherever the cut is, but other ones than
  // a CPU's, for which it would have to wait. Any other device gets those of the CPU.
  Draw NextFor(c10::Device device);

 private:
  const uint64_t seed_;
  const StepId step_;
  const MicroBatchIndex micro_batch_;
  const LayerIndex layer_;
  uint64_t draw_ = 0;
};

// The generator that initialises the parameters of a layer.
at::Generator InitialGenerator(uint64_t seed, LayerIndex layer);

}  // namespace penstock
