#include "tests/transparency/written_out_pass.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numbers>

namespace penstock::testing {
namespace {

constexpr double kEpsilon = 1e-5;  // of all norms

// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t start) : state_(start) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t word = state_;
    word = 0xbf58476d1ce4e5b9u * (word ^ word >> 30);
    word = 0x94d049bb133111ebu * (word ^ word >> 27);
    return word ^ word >> 31;
  }

 private:
  uint64_t state_;
};

// What an operator computes in.
at::Tensor Wide(const at::Tensor& tensor) { return tensor.dtype() == at::kBFloat16 ? tensor.to(at::kFloat) : tensor; }

// (x - mean) / sqrt(variance + epsilon), the variance over as many elements as there are.
at::Tensor Normalised(const at::Tensor& input, at::IntArrayRef dims) {
  const at::Tensor centred = input - input.mean(dims, /*keepdim=*/true);
  return centred / (centred.square().mean(dims, /*keepdim=*/true) + kEpsilon).sqrt();
}

// A tensor with one element per channel, for images or rows.
at::Tensor PerChannel(const at::Tensor& tensor, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = tensor.numel();
  return tensor.view(shape);
}

}  // namespace

at::Generator GeneratorOfDraw(const DrawKey& key, int64_t layer, int64_t draw) {
  constexpr uint64_t kDrawKey = 0x647261772d6b6579;  // "draw-key"
  uint64_t hash = 0;
  for (const uint64_t word :
       {kDrawKey, key.seed, static_cast<uint64_t>(key.step), static_cast<uint64_t>(key.micro_batch),
        static_cast<uint64_t>(layer), static_cast<uint64_t>(draw)}) {
    hash = SplitMix64(hash ^ SplitMix64(word).Next()).Next();
  }
  at::mt19937_data_pod data = {};
  data.seed_ = hash;
  data.seeded_ = true;
  data.left_ = 1;  // of the state nothing is left: the first number makes the next one
  SplitMix64 words(hash);
  for (uint32_t& word : data.state_) word = static_cast<uint32_t>(words.Next() >> 32);
  data.state_[0] |= 1u << 31;
  at::mt19937 twister;
  twister.set_data(data);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(hash);
  generator.get<at::CPUGeneratorImpl>()->set_engine(twister);
  return generator;
}

at::Tensor WrittenOutPass::Narrow(const at::Tensor& tensor) const {
  return autocast_ ? tensor.to(at::kBFloat16) : tensor;
}

at::Tensor WrittenOutPass::Linear(const at::Tensor& input, const std::string& weight, const std::string& bias) const {
  const at::Tensor added = bias.empty() ? at::Tensor() : Narrow(tensors_.at(bias));
  return at::linear(Narrow(input), Narrow(tensors_.at(weight)), added);
}

at::Tensor WrittenOutPass::Convolution(const at::Tensor& input, const std::string& weight) const {
  const at::Tensor kernel = Narrow(tensors_.at(weight));
  const int64_t padding = kernel.size(2) / 2;
  return at::conv2d(Narrow(input), kernel, {}, 1, {padding, padding});
}

at::Tensor WrittenOutPass::Attention(const at::Tensor& query_key_value, int64_t heads) const {
  const int64_t length = query_key_value.size(1);
  const auto parts = Narrow(query_key_value).chunk(3, -1);
  std::vector<at::Tensor> split;  // [rows, heads, length, width of a head]
  for (const at::Tensor& part : parts) split.push_back(part.unflatten(-1, {heads, -1}).transpose(1, 2));
  at::Tensor mixed;
  if (autocast_) {
    // Which of its intermediate values are bf16 is this operator's own affair.
    mixed = at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, /*is_causal=*/true);
  } else {
    const at::Tensor scores = at::matmul(split[0], split[1].transpose(2, 3)) / std::sqrt(split[0].size(3));
    const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
    mixed = at::matmul(at::softmax(scores.masked_fill(later, -INFINITY), -1), split[2]);
  }
  return mixed.transpose(1, 2).flatten(2);
}

at::Tensor WrittenOutPass::LayerNorm(const at::Tensor& input, const std::string& name) const {
  const at::Tensor normal = Normalised(Wide(input), {-1});
  return (normal * tensors_.at(name + ".weight") + tensors_.at(name + ".bias")).to(input.dtype());
}

at::Tensor WrittenOutPass::InstanceNorm(const at::Tensor& input) const {
  return Normalised(Wide(input), {2, 3}).to(input.dtype());
}

at::Tensor WrittenOutPass::BatchNorm(const at::Tensor& input, const std::string& name,
                                     const RunningStatistics& statistics) {
  const at::Tensor wide = Wide(input);
  const auto channels = [&](const std::string& tensor) { return PerChannel(tensors_.at(name + tensor), input); };
  at::Tensor normal;
  if (training_) {
    std::vector<int64_t> dims = {0};
    for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
    normal = Normalised(wide, dims);
    seen_[name] = {wide.detach(), statistics};
  } else {
    normal = (wide - channels(".running_mean")) / (channels(".running_var") + kEpsilon).sqrt();
  }
  return (normal * channels(".weight") + channels(".bias")).to(input.dtype());
}

at::Tensor WrittenOutPass::Mask(at::IntArrayRef shape, const at::Tensor& like, double p, int64_t layer) {
  const at::Generator generator = GeneratorOfDraw(key_, layer, draws_[layer]++);
  return at::empty(shape, like.options()).bernoulli_(1 - p, generator) / (1 - p);
}

at::Tensor WrittenOutPass::Dropout(const at::Tensor& input, double p, int64_t layer) {
  return training_ ? input * Mask(input.sizes(), input, p, layer) : input;
}

at::Tensor WrittenOutPass::Dropout2d(const at::Tensor& input, double p, int64_t layer) {
  return training_ ? input * Mask({input.size(0), input.size(1), 1, 1}, input, p, layer) : input;
}

at::Tensor Gelu(const at::Tensor& input) {
  const at::Tensor wide = Wide(input);
  return (wide * 0.5 * (1 + (wide / std::numbers::sqrt2).erf())).to(input.dtype());
}

at::Tensor Relu(const at::Tensor& input) { return input * (input > 0); }

at::Tensor LeakyRelu(const at::Tensor& input) { return at::where(input > 0, input, input * 0.01); }

at::Tensor HalfSize(const at::Tensor& images) {
  return images.unflatten(3, {-1, 2}).unflatten(2, {-1, 2}).amax({3, 5});
}

at::Tensor DoubleSize(const at::Tensor& images) { return images.repeat_interleave(2, 2).repeat_interleave(2, 3); }

}  // namespace penstock::testing
