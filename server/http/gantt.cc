// Draws a StepPicture: SVG for browsers, characters for terminals, numbers for programs.

#include <algorithm>
#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "server/http/step_picture.h"

namespace penstock {
namespace {

constexpr double kLeft = 92;  // for the names of lanes
constexpr double kWidth = 1000;
constexpr double kRow = 46;
constexpr double kTop = 22;
constexpr double kBar = 26;          // height of an action
constexpr double kWait = 12;         // height of a wait
constexpr double kMinWidth = 0.12;   // narrower ones can't be seen
constexpr double kLabelWidth = 7;    // of one character
constexpr double kMinShare = 5e-4;   // less reads as 0.0 %
constexpr double kSmallWidth = 5.2;  // of one character of a wait's name

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", value);
  return text;
}

// The scale: the longer of the step and its ideal fills the width.
class Scale {
 public:
  explicit Scale(const StepPicture& picture)
      : nanos_(static_cast<double>(std::max(picture.makespan, picture.ideal_finish))) {}
  double X(int64_t nanos) const { return kLeft + Width(nanos); }
  double Width(int64_t nanos) const { return static_cast<double>(nanos) / nanos_ * (kWidth - kLeft - 4); }
  double nanos() const { return nanos_; }

 private:
  const double nanos_;
};

std::string TimeText(int64_t nanos) { return Seconds(static_cast<double>(nanos) * 1e-9).text; }

// What an action is called on its bar and in a terminal; a dot for a wait.
char Letter(StageState state) {
  switch (state) {
    case StageState::kForward:
      return 'F';
    case StageState::kBackward:
      return 'B';
    case StageState::kBackwardInput:
      return 'I';
    case StageState::kBackwardWeight:
      return 'W';
    case StageState::kRecompute:
      return 'R';
    case StageState::kOptimizer:
      return 'O';
    case StageState::kFilled:
      return '+';
    default:
      return '.';
  }
}

// The longest text that has room in a span: "F3", "F" or nothing for an action, the state's name or nothing for a wait.
std::string LabelOf(const StepSpan& span, double width) {
  if (span.label.empty()) {
    const std::string name(NameOf(span.state));
    return width >= kSmallWidth * static_cast<double>(name.size()) + 4 ? name : "";
  }
  const size_t digit = span.label.find_last_not_of("0123456789");
  const std::string micro_batch = digit == std::string::npos ? "" : span.label.substr(digit + 1);
  const std::string letter(1, Letter(span.state));
  for (const std::string& label : {letter + micro_batch, letter}) {
    if (width >= kLabelWidth * static_cast<double>(label.size()) + 2) return label;
  }
  return "";
}

void AddSpan(const StepSpan& span, const Scale& scale, double y, double height, std::string* out) {
  const double width = scale.Width(span.end - span.begin);
  if (width < kMinWidth) return;
  const std::string_view state = NameOf(span.state);
  const std::string what = span.label.empty() ? std::string(state) : absl::StrCat(span.label, " ", std::string(state));
  absl::StrAppend(out, "<rect class=\"s-", std::string(state), "\" x=\"", Number(scale.X(span.begin)), "\" y=\"",
                  Number(y));
  absl::StrAppend(out, "\" width=\"", Number(std::max(width - 0.3, kMinWidth)), "\" height=\"", Number(height),
                  "\"><title>", HtmlEscape(what), ", ", TimeText(span.end - span.begin), "</title></rect>\n");
  const std::string label = LabelOf(span, width);
  if (label.empty()) return;
  const bool waits = span.label.empty();
  absl::StrAppend(out, waits ? "<text class=\"on-wait t-" : "<text class=\"on-bar t-", std::string(state), "\" x=\"",
                  Number(scale.X(span.begin) + width / 2), "\" y=\"", Number(y + height / 2 + (waits ? 3 : 4)), "\">",
                  HtmlEscape(label), "</text>\n");
}

void AddRuler(const StepPicture& picture, const Scale& scale, double bottom, std::string* out) {
  for (int i = 0; i <= 4; ++i) {
    const auto nanos = static_cast<int64_t>(scale.nanos() * i / 4);
    const std::string x = Number(scale.X(nanos));
    const char* anchor = i == 0 ? "start" : i == 4 ? "end" : "middle";
    absl::StrAppend(out, "<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", Number(kTop - 4), "\" y2=\"",
                    Number(bottom), "\"/>\n");
    absl::StrAppend(out, "<text class=\"tick\" text-anchor=\"", anchor, "\" x=\"", x, "\" y=\"", Number(bottom + 16),
                    "\">", TimeText(nanos), "</text>\n");
  }
  const std::string x = Number(scale.X(picture.ideal_finish));
  const bool right = scale.X(picture.ideal_finish) > kWidth * 0.6;
  absl::StrAppend(out, "<line class=\"ideal\" x1=\"", x, "\" x2=\"", x, "\" y1=\"6\" y2=\"", Number(bottom), "\"/>\n");
  absl::StrAppend(out, "<text class=\"ideal-text\" text-anchor=\"", right ? "end" : "start", "\" x=\"",
                  Number(scale.X(picture.ideal_finish) + (right ? -5 : 5)), "\" y=\"14\">ideal finish ",
                  TimeText(picture.ideal_finish), "</text>\n");
}

// Time of all lanes by state.
std::array<int64_t, kStageStateCount> TimeByState(const StepPicture& picture) {
  std::array<int64_t, kStageStateCount> times{};
  for (const StepLane& lane : picture.lanes) {
    for (const auto* spans : {&lane.actions, &lane.waits}) {
      for (const StepSpan& span : *spans) times[static_cast<size_t>(span.state)] += span.end - span.begin;
    }
  }
  return times;
}

double ShareOf(int64_t nanos, const StepPicture& picture) {
  return static_cast<double>(nanos) / static_cast<double>(picture.makespan) / static_cast<double>(picture.lanes.size());
}

std::string Svg(const StepPicture& picture) {
  const Scale scale(picture);
  const double bottom = kTop + kRow * static_cast<double>(picture.lanes.size());
  std::string out =
      absl::StrCat("<div class=\"wide\"><svg class=\"gantt\" role=\"img\" viewBox=\"0 0 ", Number(kWidth), " ",
                   Number(bottom + 24), "\"><title>Step ", picture.step, ": what each lane did over time</title>\n");
  AddRuler(picture, scale, bottom, &out);
  for (size_t i = 0; i < picture.lanes.size(); ++i) {
    const StepLane& lane = picture.lanes[i];
    const double y = kTop + kRow * static_cast<double>(i);
    absl::StrAppend(&out, "<text class=\"lane\" x=\"0\" y=\"", Number(y + 15), "\">lane ", i, "</text>\n");
    absl::StrAppend(&out, "<text class=\"lane-device\" x=\"0\" y=\"", Number(y + 29), "\">", HtmlEscape(lane.device),
                    "</text>\n");
    for (const StepSpan& span : lane.waits) AddSpan(span, scale, y + kBar, kWait, &out);
    for (const StepSpan& span : lane.actions) AddSpan(span, scale, y, kBar, &out);
  }
  out += "</svg></div>\n<ul class=\"legend\">\n";
  const auto times = TimeByState(picture);
  for (const StageStateInfo& info : StageStates()) {
    const int64_t nanos = times[static_cast<size_t>(info.state)];
    if (ShareOf(nanos, picture) < kMinShare) continue;
    const char letter = Letter(info.state);
    absl::StrAppend(&out, "<li><span class=\"swatch s-", std::string(info.name), "\">",
                    letter == '.' ? std::string() : std::string(1, letter), "</span>", std::string(info.name), " <b>",
                    Share(ShareOf(nanos, picture)).text, "</b></li>\n");
  }
  return out + "</ul>\n";
}

std::string Characters(const StepPicture& picture) {
  constexpr int kColumns = 100;
  const Scale scale(picture);
  std::string out;
  for (size_t i = 0; i < picture.lanes.size(); ++i) {
    std::string row(kColumns, ' ');
    for (int column = 0; column < kColumns; ++column) {
      const auto at = static_cast<int64_t>(scale.nanos() * (column + 0.5) / kColumns);
      if (at < picture.makespan) row[column] = '.';
      for (const StepSpan& span : picture.lanes[i].actions) {
        if (span.begin <= at && at < span.end) row[column] = Letter(span.state);
      }
    }
    absl::StrAppend(&out, "lane ", i, i < 10 ? "  |" : " |", row, "|\n");
  }
  const auto ideal = static_cast<size_t>(static_cast<double>(picture.ideal_finish) / scale.nanos() * (kColumns - 1));
  absl::StrAppend(&out, std::string(10 + ideal, ' '), "^ ideal finish\n\n",
                  "F forward  B backward  I, W its halves  R recompute  O optimizer  + inference  . idle\n");
  const auto times = TimeByState(picture);
  for (const StageStateInfo& info : StageStates()) {
    const int64_t nanos = times[static_cast<size_t>(info.state)];
    if (ShareOf(nanos, picture) >= kMinShare)
      absl::StrAppend(&out, "  ", std::string(info.name), " ", Share(ShareOf(nanos, picture)).text, "\n");
  }
  return out;
}

std::string SpansJson(const std::vector<StepSpan>& spans) {
  std::string out = "[";
  for (const StepSpan& span : spans) {
    absl::StrAppend(&out, out.size() > 1 ? ", " : "", "{\"begin_nanos\": ", span.begin, ", \"end_nanos\": ", span.end,
                    ", \"state\": \"", std::string(NameOf(span.state)), "\"");
    absl::StrAppend(&out, ", \"action\": \"", JsonEscape(span.label), "\"}");
  }
  return out + "]";
}

std::string Json(const StepPicture& picture) {
  std::string out = absl::StrCat("{\"step\": ", picture.step, ", \"micro_batches\": ", picture.micro_batches,
                                 ", \"makespan_nanos\": ", picture.makespan);
  absl::StrAppend(&out, ", \"ideal_finish_nanos\": ", picture.ideal_finish, ", \"bubble\": ", picture.bubble,
                  ", \"lanes\": [");
  for (size_t i = 0; i < picture.lanes.size(); ++i) {
    const StepLane& lane = picture.lanes[i];
    absl::StrAppend(&out, i > 0 ? ", " : "", "{\"lane\": ", i, ", \"device\": \"", JsonEscape(lane.device),
                    "\", \"actions\": ", SpansJson(lane.actions));
    absl::StrAppend(&out, ", \"waits\": ", SpansJson(lane.waits), "}");
  }
  return out + "]}";
}

}  // namespace

Section DrawStep(const std::optional<StepPicture>& picture) {
  Section section{.id = "last_step", .title = "The last step"};
  section.empty = "no training step is in the trace rings yet";
  if (!picture.has_value()) {
    section.picture = Section::Picture{.html = absl::StrCat("<p class=\"empty\">", section.empty, "</p>\n"),
                                       .text = section.empty + "\n",
                                       .json = "null"};
    return section;
  }
  section.note = absl::StrCat("Step ", picture->step, ", ", picture->micro_batches,
                              " micro-batches: ", TimeText(picture->makespan), ", bubble ", Share(picture->bubble).text,
                              ". Above the line what ran, below it what the lane waited for.");
  section.picture = Section::Picture{
      .html = Svg(*picture), .text = section.note + "\n\n" + Characters(*picture), .json = Json(*picture)};
  return section;
}

}  // namespace penstock
