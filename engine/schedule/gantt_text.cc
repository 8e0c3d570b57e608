#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/schedule/render.h"

namespace penstock {
namespace {

// What the letters mean, in the order in which the legend lists them.
struct Letter {
  ActionKind kind;
  std::string_view meaning;
};
constexpr std::array<Letter, 6> kLetters = {{{ActionKind::kForward, "F forward"},
                                             {ActionKind::kRecompute, "R recompute"},
                                             {ActionKind::kBackward, "B backward"},
                                             {ActionKind::kInputGradient, "I input gradient"},
                                             {ActionKind::kWeightGradient, "W weight gradient"},
                                             {ActionKind::kOptimizer, "OPT optimizer"}}};

bool SeveralStages(const std::vector<TimedAction>& list) {
  return std::any_of(list.begin(), list.end(),
                     [&](const TimedAction& timed) { return timed.action.stage != list.front().action.stage; });
}

// "F0", or "2F0" where the lane alone does not tell the stage.
std::string Label(const Action& action, bool with_stage) {
  const std::string text = ToString(action);
  return with_stage ? text : text.substr(absl::StrCat(action.stage).size());
}

// Maps time to columns. If the times have a common grain, every grain gets the same whole number of columns, as many as
// the longest label of the shortest action needs.
class Axis {
 public:
  Axis(const Simulation& simulation, int max_columns)
      : makespan_(std::max<Ticks>(1, simulation.makespan)), columns_(max_columns) {
    Ticks grain = makespan_;
    size_t label = 1;
    for (const auto& list : simulation.lanes) {
      const bool with_stage = SeveralStages(list);
      for (const TimedAction& timed : list) {
        grain = std::gcd(grain, timed.start);
        grain = std::gcd(grain, timed.end);
        if (timed.end > timed.start) label = std::max(label, Label(timed.action, with_stage).size());
      }
    }
    const Ticks grains = makespan_ / grain;
    if (grains > max_columns) return;
    const Ticks wanted = static_cast<Ticks>(label) + 2;  // the brackets
    columns_ = static_cast<int>(grains * std::min(wanted, max_columns / grains));
  }

  int columns() const { return columns_; }
  int ColumnOf(Ticks time) const { return static_cast<int>(static_cast<__int128>(time) * columns_ / makespan_); }

 private:
  const Ticks makespan_;
  int columns_;
};

void DrawAction(const std::string& label, int begin, int end, std::string* row) {
  const int width = end - begin;
  const int letters = static_cast<int>(label.size());
  if (width < letters) {
    const auto letter = std::find_if(label.begin(), label.end(), [](char c) { return c < '0' || c > '9'; });
    std::fill(row->begin() + begin, row->begin() + end, *letter);
    return;
  }
  const bool brackets = width >= letters + 2;
  std::fill(row->begin() + begin, row->begin() + end, ' ');
  row->replace(begin + (brackets ? 1 : 0), letters, label);
  if (!brackets) return;
  (*row)[begin] = '[';
  (*row)[end - 1] = ']';
}

}  // namespace

std::string UnitsText(Ticks ticks) {
  return absl::StrFormat("%.6g", static_cast<double>(ticks) / static_cast<double>(kTicksPerUnit));
}

std::string RenderGantt(const Simulation& simulation, const GanttOptions& options) {
  const Axis axis(simulation, std::clamp(options.columns, 16, 4096));
  const size_t name_width = absl::StrCat("lane ", simulation.lanes.size() - 1).size();
  std::set<ActionKind> drawn;
  std::string text;
  for (size_t lane = 0; lane < simulation.lanes.size(); ++lane) {
    const auto& list = simulation.lanes[lane];
    const bool with_stage = SeveralStages(list);
    std::string row(axis.columns(), '.');
    for (const TimedAction& timed : list) {
      if (timed.start == timed.end) continue;
      drawn.insert(timed.action.kind);
      DrawAction(Label(timed.action, with_stage), axis.ColumnOf(timed.start), axis.ColumnOf(timed.end), &row);
    }
    const double busy = simulation.makespan == 0 ? 0
                                                 : 100.0 * static_cast<double>(simulation.times[lane].busy) /
                                                       static_cast<double>(simulation.makespan);
    absl::StrAppend(&text, absl::StrFormat("%-*s |%s| %5.1f %% busy\n", static_cast<int>(name_width),
                                           absl::StrCat("lane ", lane), row, busy));
  }
  if (options.totals) {
    absl::StrAppendFormat(&text, "makespan %s, ideal %s, bubble %.1f %%\n", UnitsText(simulation.makespan),
                          UnitsText(simulation.ideal), 100 * simulation.Bubble());
  }
  std::vector<std::string> legend;
  for (const Letter& letter : kLetters) {
    if (drawn.count(letter.kind) > 0) legend.emplace_back(letter.meaning);
  }
  absl::StrAppend(&text, absl::StrJoin(legend, ", "), legend.empty() ? "" : ", ", ". idle\n");
  return text;
}

}  // namespace penstock
