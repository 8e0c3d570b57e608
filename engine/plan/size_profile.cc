#include "engine/plan/size_profile.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace penstock {
namespace {

constexpr int64_t kFarApart = 3;

// The line through (x0, y0) and (x1, y1), x0 < x1, at x.
double Line(double x0, double y0, double x1, double y1, double x) {
  const double y = y0 + (y1 - y0) * (x - x0) / (x1 - x0);
  // Noise may bend a line down: no size costs less than its share of a larger one, or more than its multiple of a
  // smaller.
  if (x < x0) return std::clamp(y, y0 * x / x0, std::max(y0, y0 * x / x0));
  if (x > x1) return std::clamp(y, std::min(y1, y1 * x / x1), y1 * x / x1);
  return y;
}

int64_t WholeLine(int64_t x0, int64_t y0, int64_t x1, int64_t y1, int64_t x) {
  return std::llround(Line(static_cast<double>(x0), static_cast<double>(y0), static_cast<double>(x1),
                           static_cast<double>(y1), static_cast<double>(x)));
}

LayerProfile Between(int64_t x0, const LayerProfile& a, int64_t x1, const LayerProfile& b, int64_t x) {
  const auto time = [&](double LayerProfile::*seconds) {
    return Line(static_cast<double>(x0), a.*seconds, static_cast<double>(x1), b.*seconds, static_cast<double>(x));
  };
  const auto bytes = [&](int64_t LayerProfile::*count) { return WholeLine(x0, a.*count, x1, b.*count, x); };
  LayerProfile layer = a;
  layer.forward_seconds = time(&LayerProfile::forward_seconds);
  layer.backward_seconds = time(&LayerProfile::backward_seconds);
  layer.input_gradient_seconds = time(&LayerProfile::input_gradient_seconds);
  layer.weight_gradient_seconds = time(&LayerProfile::weight_gradient_seconds);
  layer.output_bytes = bytes(&LayerProfile::output_bytes);
  layer.stash_bytes = bytes(&LayerProfile::stash_bytes);
  for (auto& [name, count] : layer.skip_bytes) {
    const auto other = b.skip_bytes.find(name);
    if (other != b.skip_bytes.end()) count = WholeLine(x0, count, x1, other->second, x);
  }
  return layer;
}

}  // namespace

void SizeProfile::Extend(int64_t rows) {
  const auto& [measured_rows, measured] = *measured_.begin();
  const double factor = static_cast<double>(rows) / static_cast<double>(measured_rows);
  const auto bytes = [factor](int64_t count) { return std::llround(static_cast<double>(count) * factor); };
  std::vector<LayerProfile> layers = measured;
  for (LayerProfile& layer : layers) {
    layer.forward_seconds *= factor;
    layer.backward_seconds *= factor;
    layer.input_gradient_seconds *= factor;
    layer.weight_gradient_seconds *= factor;
    layer.output_bytes = bytes(layer.output_bytes);
    layer.stash_bytes = bytes(layer.stash_bytes);
    for (auto& [name, count] : layer.skip_bytes) count = bytes(count);
  }
  Add(rows, std::move(layers));
}

std::vector<LayerProfile> SizeProfile::At(int64_t rows) const {
  if (measured_.size() == 1) return measured_.begin()->second;
  auto above = measured_.lower_bound(rows);
  if (above != measured_.end() && above->first == rows) return above->second;
  if (above == measured_.begin()) ++above;
  if (above == measured_.end()) --above;
  const auto below = std::prev(above);
  std::vector<LayerProfile> layers;
  for (size_t i = 0; i < below->second.size(); ++i) {
    layers.push_back(Between(below->first, below->second[i], above->first, above->second[i], rows));
  }
  return layers;
}

std::vector<int64_t> SizeProfile::rows() const {
  std::vector<int64_t> rows;
  for (const auto& [size, layers] : measured_) rows.push_back(size);
  return rows;
}

bool SizeProfile::measured() const {
  return std::all_of(measured_.begin(), measured_.end(), [](const auto& size) {
    return std::all_of(size.second.begin(), size.second.end(),
                       [](const LayerProfile& layer) { return layer.measured; });
  });
}

std::vector<int64_t> SizesToMeasure(int64_t smallest, int64_t largest) {
  if (smallest >= largest) return {smallest};
  if (largest < kFarApart * smallest) return {smallest, largest};
  const int64_t middle = std::llround(std::sqrt(static_cast<double>(smallest) * static_cast<double>(largest)));
  return {smallest, std::clamp(middle, smallest + 1, largest - 1), largest};
}

}  // namespace penstock
