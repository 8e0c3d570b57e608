#include "engine/plan/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock {
namespace {

Ticks TicksOf(double seconds) { return std::min<Ticks>(kMaxCost, std::llround(std::max(0.0, seconds) * 1e9)); }

}  // namespace

LayerCosts::LayerCosts(std::vector<LayerProfile> layers) : layers_(std::move(layers)), sums_(layers_.size() + 1) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerProfile& layer = layers_[i];
    sums_[i + 1] = sums_[i];
    Sum& sum = sums_[i + 1];
    sum.forward += layer.forward_seconds;
    sum.backward += layer.backward_seconds;
    sum.input_gradient += layer.input_gradient_seconds;
    sum.weight_gradient += layer.weight_gradient_seconds;
    sum.parameters += layer.parameter_bytes;
    sum.stash += layer.stash_bytes;
  }
}

StageCosts LayerCosts::Of(int begin, int end) const {
  const Sum& a = sums_[begin];
  const Sum& b = sums_[end];
  const Ticks backward = TicksOf(b.backward - a.backward);
  StageCosts costs;
  costs.forward = costs.recompute = TicksOf(b.forward - a.forward);
  costs.input_gradient = halves() ? TicksOf(b.input_gradient - a.input_gradient) : backward / 2;
  costs.weight_gradient = halves() ? TicksOf(b.weight_gradient - a.weight_gradient) : backward - backward / 2;
  costs.backward = backward;
  return costs;
}

StageBytes LayerCosts::BytesOf(int begin, int end, double optimizer_ratio) const {
  StageBytes bytes;
  bytes.parameters = sums_[end].parameters - sums_[begin].parameters;
  bytes.optimizer = static_cast<int64_t>(static_cast<double>(bytes.parameters) * optimizer_ratio);
  bytes.stash = sums_[end].stash - sums_[begin].stash;
  bytes.input = begin == 0 ? 0 : layers_[begin - 1].output_bytes;
  return bytes;
}

}  // namespace penstock
