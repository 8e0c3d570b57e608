#include "engine/filling/gap_filler.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

constexpr int64_t kOvershoot = 5;      // one part in so many of an action may lie beyond its gap
constexpr size_t kMaxRemembered = 64;  // pipelines of one device

}  // namespace

bool GapFiller::Fits(const InferenceCandidate& candidate, const Outlook& outlook) {
  const bool beside_training = std::min(outlook.training_at, candidate.training_at) != kNever;
  return (candidate.fills || !beside_training) && HasTime(candidate, outlook);
}

bool GapFiller::HasTime(const InferenceCandidate& candidate, const Outlook& outlook) {
  const int64_t needed_at = std::min(outlook.training_at, candidate.training_at);
  if (needed_at == kNever) return true;
  if (candidate.duration == kNever) return false;
  const int64_t gap = needed_at - outlook.now;
  if (candidate.duration - candidate.duration / kOvershoot > gap) return false;
  if (candidate.weights_change_at == kNever) return true;
  return candidate.to_end - candidate.to_end / kOvershoot <= candidate.weights_change_at - outlook.now;
}

int64_t GapFiller::YieldsUntil(const InferenceCandidate& candidate, const Outlook& outlook) {
  int64_t until = outlook.now;
  if (candidate.duration == kNever) return until;
  for (const InferenceArrival& arrival : outlook.arrivals) {
    if (arrival.at == kNever || arrival.pipeline != candidate.pipeline || !(arrival.order < candidate.order)) continue;
    if (arrival.at < outlook.now + candidate.duration) until = std::max(until, arrival.at + candidate.duration);
  }
  return until;
}

std::optional<size_t> GapFiller::ChooseDue(const std::vector<InferenceCandidate>& candidates) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].due) continue;
    if (!best.has_value() || candidates[i].order < candidates[*best].order) best = i;
  }
  return best;
}

std::optional<size_t> GapFiller::Choose(const std::vector<InferenceCandidate>& candidates,
                                        const Outlook& outlook) const {
  if (const std::optional<size_t> due = ChooseDue(candidates)) return due;
  std::optional<size_t> best;
  const auto order = [this](const InferenceCandidate& one) { return std::make_pair(TurnOf(one.pipeline), one.order); };
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!Fits(candidates[i], outlook) || YieldsUntil(candidates[i], outlook) > outlook.now) continue;
    if (!best.has_value() || order(candidates[i]) < order(candidates[*best])) best = i;
  }
  return best;
}

void GapFiller::Served(const void* pipeline) {
  std::erase(served_, pipeline);
  if (served_.size() >= kMaxRemembered) served_.erase(served_.begin());
  served_.push_back(pipeline);
}

size_t GapFiller::TurnOf(const void* pipeline) const {
  const auto found = std::find(served_.begin(), served_.end(), pipeline);
  return found == served_.end() ? 0 : static_cast<size_t>(found - served_.begin()) + 1;
}

}  // namespace penstock
