#include "client/cli/lane_bars.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/observe/state_ink.h"

namespace penstock {
namespace {

// One letter for each state, in the order of the table: capitals work, small letters wait.
constexpr std::string_view kLetters = "FBIWRO+srfdagkvyhiwcl.pS";
static_assert(kLetters.size() == kStageStateCount);

char LetterOf(StageState state) { return kLetters[static_cast<size_t>(state)]; }

std::string Coloured(const std::string& text, StageState state) {
  const std::string colour(InfoOf(state).colour.substr(1));
  const long value = std::strtol(colour.c_str(), nullptr, 16);
  const int ink = WantsWhiteInk(InfoOf(state).colour) ? 255 : 0;
  return absl::StrFormat("\x1b[48;2;%d;%d;%dm\x1b[38;2;%d;%d;%dm%s\x1b[0m", value >> 16, value >> 8 & 255, value & 255,
                         ink, ink, ink, text);
}

}  // namespace

double LaneShares::total() const {
  double sum = 0;
  for (const auto& [state, time] : seconds) sum += time;
  return sum;
}

double LaneShares::work() const {
  double sum = 0;
  for (const auto& [state, time] : seconds) sum += InfoOf(state).state_class == StateClass::kWork ? time : 0;
  return sum;
}

double LaneShares::in_step() const {
  double sum = 0;
  for (const auto& [state, time] : seconds) sum += IsInStep(state) ? time : 0;
  return sum;
}

double LaneShares::busy() const {
  double sum = work();
  for (const StageState state : {StageState::kFilled, StageState::kInfer}) {
    const auto found = seconds.find(state);
    if (found != seconds.end()) sum += found->second;
  }
  return total() > 0 ? sum / total() : 0;
}

double LaneShares::bubble() const { return in_step() > 0 ? 1 - work() / in_step() : 0; }

std::vector<LaneShares> SharesBetween(const v1::PipelineStatistics& before, const v1::PipelineStatistics& after) {
  std::vector<LaneShares> lanes;
  for (int i = 0; i < after.lanes_size(); ++i) {
    const v1::LaneStatistics& now = after.lanes(i);
    LaneShares lane{now.lane(), now.device(), now.state(), {}, now.peak_activation_bytes()};
    for (const auto& [name, seconds] : now.state_seconds()) {
      const std::optional<StageState> state = StageStateFromName(name);
      if (!state.has_value()) continue;
      double since = seconds;
      if (i < before.lanes_size()) {
        const auto& old = before.lanes(i).state_seconds();
        if (const auto found = old.find(name); found != old.end()) since -= found->second;
      }
      if (since > 0) lane.seconds[*state] = since;
    }
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

std::string LaneBar(const LaneShares& lane, int columns, bool colours) {
  std::string bar;
  double sum = 0;
  int drawn = 0;
  const double total = lane.total();
  for (const auto& [state, seconds] : lane.seconds) {
    sum += seconds;
    const int until = static_cast<int>(std::lround(sum / total * columns));
    const std::string letters(static_cast<size_t>(std::max(0, until - drawn)), LetterOf(state));
    if (!letters.empty()) bar += colours ? Coloured(letters, state) : letters;
    drawn = std::max(drawn, until);
  }
  return bar + std::string(static_cast<size_t>(std::max(0, columns - drawn)), ' ');
}

std::string LaneLegend(const std::vector<LaneShares>& lanes, bool colours) {
  std::set<StageState> seen;
  for (const LaneShares& lane : lanes) {
    for (const auto& [state, seconds] : lane.seconds) seen.insert(state);
  }
  std::string legend;
  for (const StageState state : seen) {
    const std::string letter(1, LetterOf(state));
    absl::StrAppend(&legend, legend.empty() ? "" : "  ", colours ? Coloured(letter, state) : letter, " ",
                    std::string(NameOf(state)));
  }
  return legend;
}

}  // namespace penstock
