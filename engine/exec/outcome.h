#pragma once

// What runs of a pipeline return.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tensor/value.h"

namespace penstock {

// What a run did.
struct RunOutcome {
  std::optional<double> loss;
  std::optional<double> counted;          // elements that the loss is the mean of, or the sum of what they weigh
  std::map<std::string, double> metrics;  // of an evaluation: means over counted elements, 0 where nothing counts
  int64_t metric_elements = 0;            // that they are means of: what an element weighs does not matter to them
  std::optional<double> gradient_norm;
  std::optional<bool> applied;
  std::optional<double> learning_rate;
  int64_t step = 0;   // finished optimizer steps after the run; of inference: of the weights
  int64_t state = 0;  // of inference: the number of the state that its weights came with, as SetNextState() had it
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
