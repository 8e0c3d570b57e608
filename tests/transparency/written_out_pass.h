#pragma once

// Layers written out as arithmetic on tensors, for the reference that shares nothing with the engine
// (written_out_training.h).

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace penstock::testing {

using TensorMap = std::map<std::string, at::Tensor>;

// What a random draw depends on, beside its layer and its number within the layer.
struct DrawKey {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t micro_batch = 0;  // counted over all contributions of the step
};

// The generator of one draw, by the formula: the words "draw-key", seed, step, micro-batch, layer, draw are folded into
// a hash h by h = mix((h xor mix(word + g)) + g), where mix is the finalizer of SplitMix64 and g = 0x9e3779b97f4a7c15.
// The upper halves of the SplitMix64 sequence that starts at h are the state of a Mersenne Twister; its top bit is set.
at::Generator GeneratorOfDraw(const DrawKey& key, int64_t layer, int64_t draw);

// How a batch norm keeps its running statistics.
struct RunningStatistics {
  double momentum = 0.1;
  bool cumulative = false;  // the plain average of all updates, instead of a momentum
  bool deferred = false;    // one update for all micro-batches of a step, instead of one for each
};

// One forward pass of one micro-batch. Parameters and buffers are found by the names that the pipeline saves them
// under.
//
// Model:     bf16 autocast is written out: `linear`, `conv2d` and attention take their operands as bf16, other
//            operators take what comes and compute in float inside.
// Threads:   one at a time.
class WrittenOutPass {
 public:
  WrittenOutPass(const TensorMap& tensors, bool autocast, bool training, const DrawKey& key)
      : tensors_(tensors), autocast_(autocast), training_(training), key_(key) {}

  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

  // x W^T + b. An empty name means no bias.
  at::Tensor Linear(const at::Tensor& input, const std::string& weight, const std::string& bias = "") const;
  // Stride 1, and padding that keeps the size for an odd kernel.
  at::Tensor Convolution(const at::Tensor& input, const std::string& weight) const;
  // Causal attention of [rows, length, 3 * width], where query, key and value follow one another.
  at::Tensor Attention(const at::Tensor& query_key_value, int64_t heads) const;
  // Over the last dimension, with NAME.weight and NAME.bias.
  at::Tensor LayerNorm(const at::Tensor& input, const std::string& name) const;
  // Over each image and channel, without weights.
  at::Tensor InstanceNorm(const at::Tensor& input) const;
  // Over all dimensions but 1, with NAME.weight, NAME.bias and the running statistics.
  at::Tensor BatchNorm(const at::Tensor& input, const std::string& name, const RunningStatistics& statistics);
  // An element stays, divided by 1 - p, or becomes 0. `layer` is the place of the layer in the model.
  at::Tensor Dropout(const at::Tensor& input, double p, int64_t layer);
  // The same for each channel of each image.
  at::Tensor Dropout2d(const at::Tensor& input, double p, int64_t layer);

  // What batch norms have seen, by name.
  struct Seen {
    at::Tensor input;  // of float or double
    RunningStatistics statistics;
  };
  const std::map<std::string, Seen>& seen() const { return seen_; }

 private:
  at::Tensor Narrow(const at::Tensor& tensor) const;
  at::Tensor Mask(at::IntArrayRef shape, const at::Tensor& like, double p, int64_t layer);

  const TensorMap& tensors_;
  const bool autocast_;
  const bool training_;
  const DrawKey key_;
  std::map<int64_t, int64_t> draws_;  // by layer
  std::map<std::string, Seen> seen_;
};

at::Tensor Gelu(const at::Tensor& input);
at::Tensor Relu(const at::Tensor& input);
at::Tensor LeakyRelu(const at::Tensor& input);
// The largest of each square of two by two.
at::Tensor HalfSize(const at::Tensor& images);
// Each element four times.
at::Tensor DoubleSize(const at::Tensor& images);

}  // namespace penstock::testing
