#pragma once

// What a plan needs of each lane's memory, by class of buffer.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

enum class BufferClass {
  kWeights,
  kGradients,
  kOptimizerState,
  kActivations,
  kReceivedInputs,
  kReceivedGradients,
  kUndo
};
inline constexpr int kBufferClasses = 7;
std::string_view ToString(BufferClass buffer);  // "weights", "optimizer state"

// Bytes by class, each at its own peak: so much an arena with a part for each class takes.
struct BufferBytes {
  std::array<int64_t, kBufferClasses> bytes = {};

  int64_t& operator[](BufferClass buffer) { return bytes[static_cast<size_t>(buffer)]; }
  int64_t operator[](BufferClass buffer) const { return bytes[static_cast<size_t>(buffer)]; }
  BufferBytes& operator+=(const BufferBytes& other);
  int64_t total() const;
  BufferClass largest() const;
};

// What the memory of a stage depends on, per micro-batch.
struct StageBytes {
  int64_t parameters = 0;
  int64_t optimizer = 0;
  int64_t stash = 0;  // saved by a forward
  int64_t input = 0;  // from the stage before
  int64_t undo = 0;   // copies of what a step changes
};

// Of the stages of a plan.
std::vector<StageBytes> BytesOf(const Plan& plan);

// Per lane of `lists`, which `simulation` has run.
//
// Model:     how long each buffer lives. Activations: from F, or R where one follows, to B, or W where the
//            backward is split; what the input half frees is not counted, so this errs to the safe side. Received
//            inputs, skips included: from their producer's end, in a recomputed micro-batch too, to the last use in the
//            backward. Received gradients: from their producer's end to the end of B or I. What the model itself is
//            given, what a kernel uses meanwhile, and copies on their way are not counted.
// Units:     bytes.
std::vector<BufferBytes> LaneMemory(const Schedule& lists, const Simulation& simulation,
                                    const std::vector<StageBytes>& stages, const std::vector<SkipRoute>& skips);

// Sends of one step from lane to lane, activations, gradients and skips.
int64_t MessageCount(const std::vector<int>& lane_of, const std::vector<SkipRoute>& skips, int micro_batches);

}  // namespace penstock
