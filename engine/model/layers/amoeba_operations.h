#pragma once

// The operations that a cell of AmoebaNet-D is made of (Real et al., "Regularized evolution for image classifier
// architecture search", 2018).

#include <optional>
#include <string>
#include <vector>

#include "engine/model/layers/image_block.h"

namespace penstock {

enum class AmoebaOperation { kNone, kAveragePool3x3, kMaxPool2x2, kMaxPool3x3, kConv1x1, kConv3x3, kConv1x7And7x1 };

// One half of a pair of operations, and the state that it works on. States 0 and 1 are what reaches the cell; each
// pair's sum is the next state.
struct AmoebaStep {
  int state;
  AmoebaOperation operation;
};

// The genotype of a kind of cell: ten steps, and the states that it gives, joined.
struct AmoebaGenotype {
  std::vector<AmoebaStep> steps;
  std::vector<int> joined;
};
const AmoebaGenotype& NormalCell();
const AmoebaGenotype& ReductionCell();  // steps on states 0 and 1 halve the size

// A layer that holds such operations.
class AmoebaBlock : public ImageBlock {
 protected:
  // ReLU, convolution, batch norm.
  struct Unit {
    Convolution convolution;
    BatchNorm* norm = nullptr;
  };
  // Halves the size without losing every other pixel: two strided 1 x 1 convolutions, one of them a pixel further.
  struct Halving {
    Convolution even;
    Convolution odd;
    BatchNorm* norm = nullptr;
  };
  struct Operation {
    AmoebaOperation kind = AmoebaOperation::kNone;
    int64_t stride = 1;
    std::vector<Unit> units;
    std::optional<Halving> halving;
  };

  Unit AddUnit(const std::string& name, const LayerRequest& request, const ConvolutionShape& shape);
  Halving AddHalving(const std::string& name, const LayerRequest& request, int64_t in, int64_t out);
  Operation AddOperation(const std::string& name, const LayerRequest& request, AmoebaOperation kind, int64_t channels,
                         int64_t stride);

  // May throw (RunTorch).
  static at::Tensor Apply(const Unit& unit, const at::Tensor& input, const LayerContext& context);
  static at::Tensor Apply(const Halving& halving, const at::Tensor& input, const LayerContext& context);
  static at::Tensor Apply(const Operation& operation, const at::Tensor& input, const LayerContext& context);
};

}  // namespace penstock
