#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/check.h"
#include "engine/schedule/render.h"

namespace penstock {
namespace {

// How a state is drawn. Names and colours are those of the measured stage states, so that a predicted and a measured
// picture look alike.
struct Look {
  std::string_view name;
  std::string_view color;
  std::string_view text_color;
};

// Work, in the order of ActionKind as far as it takes time; then idle, in the order of IdleCause.
constexpr std::array<Look, 5> kWork = {{{"forward", "#1f77b4", "#ffffff"},
                                        {"backward", "#2ca02c", "#ffffff"},
                                        {"backward_input", "#66bb6a", "#000000"},
                                        {"backward_weight", "#a5d6a7", "#000000"},
                                        {"recompute", "#9467bd", "#ffffff"}}};
constexpr Look kOptimizer = {"optimizer", "#17becf", "#000000"};
constexpr std::array<Look, 5> kIdle = {{{"fill", "#ffd54f", "#000000"},
                                        {"wait_activation", "#ff7043", "#000000"},
                                        {"wait_gradient", "#e53935", "#ffffff"},
                                        {"sync", "#8d6e63", "#ffffff"},
                                        {"drain", "#ffb300", "#000000"}}};

constexpr int kLeft = 72;
constexpr int kTop = 8;
constexpr int kRowHeight = 26;
constexpr int kBarHeight = 22;
constexpr int kLetterWidth = 7;
constexpr int kLegendWidth = 130;

const Look& LookOf(ActionKind kind) {
  if (kind == ActionKind::kOptimizer) return kOptimizer;
  PENSTOCK_CHECK(!IsCommunication(kind));
  return kWork[static_cast<size_t>(kind)];
}

absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// Writes the picture, top to bottom. All text is ours: names, numbers and action texts need no escaping.
class Picture {
 public:
  Picture(const Simulation& simulation, int width)
      : simulation_(simulation),
        width_(width),
        scale_(width / std::max(1.0, static_cast<double>(simulation.makespan))) {}

  std::string Draw() {
    const int lanes = static_cast<int>(simulation_.lanes.size());
    std::string rows;
    for (int lane = 0; lane < lanes; ++lane) DrawLane(lane, &rows);
    const int bottom = kTop + lanes * kRowHeight;
    DrawIdeal(bottom, &rows);
    const int legend_rows = DrawLegend(bottom + 22, &rows);
    const int full_width = kLeft + width_ + 8;
    const int full_height = bottom + 22 + legend_rows * 20;
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"gantt\" role=\"img\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" font-family=\"monospace\" font-size=\"11\">\n<title>%d lanes, makespan %s, ideal "
        "%s, bubble %.1f %%</title>\n%s</svg>\n",
        full_width, full_height, full_width, full_height, lanes, UnitsText(simulation_.makespan),
        UnitsText(simulation_.ideal), 100 * simulation_.Bubble(), rows);
  }

 private:
  double X(Ticks time) const { return kLeft + static_cast<double>(time) * scale_; }

  void DrawLane(int lane, std::string* out) {
    const int y = kTop + lane * kRowHeight;
    absl::StrAppendFormat(out, "<g class=\"lane\">\n<text x=\"4\" y=\"%d\">lane %d</text>\n", y + 15, lane);
    for (const IdleSpan& span : simulation_.idle[lane]) {
      const Look& look = kIdle[static_cast<size_t>(span.cause)];
      DrawBar(look, look.name, "", 1, span.start, span.end, y, out);
    }
    // Every other stage of a lane is paler, so that its chunks are told apart where no letter fits.
    std::set<int> stages;
    for (const TimedAction& timed : simulation_.lanes[lane]) stages.insert(timed.action.stage);
    const auto opacity = [&](int stage) {
      return std::distance(stages.begin(), stages.find(stage)) % 2 == 0 ? 1 : 0.7;
    };
    for (const TimedAction& timed : simulation_.lanes[lane]) {
      if (timed.start == timed.end) continue;
      const std::string text = ToString(timed.action);
      DrawBar(LookOf(timed.action.kind), text, text, opacity(timed.action.stage), timed.start, timed.end, y, out);
    }
    out->append("</g>\n");
  }

  void DrawBar(const Look& look, std::string_view title, std::string_view label, double opacity, Ticks start, Ticks end,
               int y, std::string* out) {
    used_.insert(look.name);
    const double width = X(end) - X(start);
    absl::StrAppendFormat(out,
                          "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" %s"
                          "stroke=\"#ffffff\" stroke-width=\"0.5\"><title>%s: %s to %s</title></rect>\n",
                          AbslView(look.name), X(start), y, width, kBarHeight, AbslView(look.color),
                          opacity == 1 ? "" : absl::StrFormat("fill-opacity=\"%g\" ", opacity), AbslView(title),
                          UnitsText(start), UnitsText(end));
    if (label.empty() || width < static_cast<double>(kLetterWidth * label.size())) return;
    absl::StrAppendFormat(out, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n",
                          X(start) + width / 2, y + 15, AbslView(look.text_color), AbslView(label));
  }

  void DrawIdeal(int bottom, std::string* out) {
    const double x = X(simulation_.ideal);
    absl::StrAppendFormat(out,
                          "<line class=\"ideal\" x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"#000000\" "
                          "stroke-dasharray=\"4 3\"><title>ideal finish: %s</title></line>\n",
                          x, kTop - 4, x, bottom + 2, UnitsText(simulation_.ideal));
    absl::StrAppendFormat(out, "<text x=\"%d\" y=\"%d\">0</text>\n", kLeft, bottom + 12);
    absl::StrAppendFormat(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", kLeft + width_, bottom + 12,
                          UnitsText(simulation_.makespan));
  }

  // Returns how many rows it took.
  int DrawLegend(int top, std::string* out) {
    std::vector<const Look*> looks;
    for (const Look& look : kWork) looks.push_back(&look);
    looks.push_back(&kOptimizer);
    for (const Look& look : kIdle) looks.push_back(&look);
    const int per_row = std::max(1, width_ / kLegendWidth);
    int count = 0;
    for (const Look* look : looks) {
      if (used_.count(look->name) == 0) continue;
      const int x = kLeft + count % per_row * kLegendWidth;
      const int y = top + count / per_row * 20;
      absl::StrAppendFormat(out,
                            "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n<text "
                            "x=\"%d\" y=\"%d\">%s</text>\n",
                            AbslView(look->name), x, y, AbslView(look->color), x + 16, y + 10, AbslView(look->name));
      ++count;
    }
    return (count + per_row - 1) / per_row;
  }

  const Simulation& simulation_;
  const int width_;
  const double scale_;
  std::set<std::string_view> used_;  // looks that the legend must explain
};

}  // namespace

std::string RenderSvg(const Simulation& simulation, const SvgOptions& options) {
  return Picture(simulation, std::clamp(options.width, 100, 16384)).Draw();
}

}  // namespace penstock
