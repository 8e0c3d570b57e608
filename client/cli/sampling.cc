#include "client/cli/sampling.h"

#include <cmath>
#include <limits>
#include <vector>

namespace penstock {

int SampleIndex(std::span<const float> scores, double temperature, std::mt19937_64& random) {
  int best = 0;
  float highest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > highest) {
      highest = scores[i];
      best = static_cast<int>(i);
    }
  }
  if (temperature <= 0 || !std::isfinite(highest)) return best;

  std::vector<double> weights;
  weights.reserve(scores.size());
  double sum = 0;
  for (float score : scores) {
    weights.push_back(std::isnan(score) ? 0 : std::exp((score - highest) / temperature));
    sum += weights.back();
  }
  // std::discrete_distribution differs between libraries; this draw does not.
  double left = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int>(i);
  }
  return best;
}

}  // namespace penstock
