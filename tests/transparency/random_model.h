#pragma once

// Random models: whatever layers may stand behind one another, with skips, tuples, ties and layers in layers.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/model/model_spec.h"

namespace penstock::testing {

// Choices that depend on a seed only, the same with every standard library.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t least, int64_t most) { return least + Below(most - least + 1); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(Below(static_cast<int64_t>(choices.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

// A model and what it takes and gives.
struct RandomModel {
  ModelSpec spec;
  std::string inputs;                // letters of value_layers.h, one per input
  std::vector<int64_t> input_shape;  // of one row of each tensor: [width], [length, width] or [channels, height, width]
  std::vector<int64_t> output_shape;  // of one row of the first output, a tensor
};

// Layers of 1 to 33 features, of every kind of value_layers.h and the built-in ones that fit.
RandomModel MakeRandomModel(Dice& dice);

// "linear(in=4, out=6) | sequential[relu | stash(name=a)] | ...; ties: ..."
std::string Describe(const ModelSpec& model);

}  // namespace penstock::testing
