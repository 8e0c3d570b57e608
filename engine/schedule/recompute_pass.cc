#include "engine/schedule/recompute_pass.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

// In the order of RecomputeMode.
constexpr std::array<std::string_view, 4> kModeTexts = {"never", "except_last", "always", "skip_adjacent"};

bool NeedsRecompute(const Schedule& schedule, RecomputeMode mode, const std::vector<Action>& list, size_t position) {
  switch (mode) {
    case RecomputeMode::kNever:
      return false;
    case RecomputeMode::kExceptLast:
      return list[position].micro_batch != schedule.micro_batches - 1;
    case RecomputeMode::kAlways:
      return true;
    case RecomputeMode::kSkipAdjacent: {
      const Action own_forward{ActionKind::kForward, list[position].stage, list[position].micro_batch};
      return position == 0 || list[position - 1] != own_forward;
    }
  }
  return false;
}

}  // namespace

std::string_view ToString(RecomputeMode mode) { return kModeTexts[static_cast<size_t>(mode)]; }

absl::StatusOr<RecomputeMode> ParseRecomputeMode(std::string_view text) {
  std::string name(text);
  for (char& c : name) {
    if (c == '-' || c == ' ') c = '_';
  }
  for (size_t i = 0; i < kModeTexts.size(); ++i) {
    if (kModeTexts[i] == name) return static_cast<RecomputeMode>(i);
  }
  return InvalidField("recompute", "must be one of never, except_last, always, skip_adjacent", text);
}

Schedule InsertRecompute(Schedule schedule, RecomputeMode mode) {
  if (mode == RecomputeMode::kNever) return schedule;
  for (auto& list : schedule.lanes) {
    std::vector<Action> longer;
    longer.reserve(list.size() * 3 / 2);
    for (size_t position = 0; position < list.size(); ++position) {
      const Action& action = list[position];
      if (ConsumesGradient(action.kind) && NeedsRecompute(schedule, mode, list, position)) {
        longer.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
      }
      longer.push_back(action);
    }
    list = std::move(longer);
  }
  return schedule;
}

}  // namespace penstock
