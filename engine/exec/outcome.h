#pragma once

// What runs of a pipeline return.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/tensor/value.h"

namespace penstock {

// What a run did.
struct RunOutcome {
  std::optional<double> loss;
  std::optional<double> gradient_norm;
  std::optional<bool> applied;
  std::optional<double> learning_rate;
  int64_t step = 0;  // finished optimizer steps after the run
  int64_t rows = 0;
  int micro_batches = 0;
  double seconds = 0;
  double measured_bubble = 0;
  NamedValues outputs;
  NamedValues input_gradients;  // of Backward, if the Forward asked; None where an input has no gradient
};

// The activations that a Forward keeps for its Backward. Opaque; freed with the last reference.
class Graph;
// Outputs that only a run can name are called output (one by itself), or output0, output1, ...; values that are no
// tensors come as a list, one item per micro-batch.
struct ForwardOutcome {
  NamedValues outputs;
  std::shared_ptr<Graph> graph;
  int64_t step = 0;
};

}  // namespace penstock
