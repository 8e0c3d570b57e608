// Chrome's trace event format, JSON: one process per lane, one thread per track. Source: "Trace Event Format", the
// Chromium project, 2016.

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/log.h"
#include "engine/observe/chrome_colours.h"
#include "engine/observe/trace_writer.h"

namespace penstock {
namespace {

std::string Micros(int64_t nanos) { return absl::StrFormat("%d.%03d", nanos / 1000, nanos % 1000); }

std::string CountersJson(const TraceCapture& capture, const StateTimes LaneCapture::*which) {
  std::string text = "[";
  for (const LaneCapture& lane : capture.lanes) {
    const StateTimes& times = lane.*which;
    absl::StrAppend(&text, text.size() > 1 ? "," : "", "{\"lane\":", lane.description.lane,
                    ",\"at_nanos\":", times.at_nanos, ",\"state_nanos\":{");
    const char* comma = "";
    for (const StageStateInfo& info : StageStates()) {
      absl::StrAppendFormat(&text, "%s\"%s\":%d", comma, absl::string_view(info.name.data(), info.name.size()),
                            times[info.state]);
      comma = ",";
    }
    text += "}}";
  }
  return text + "]";
}

// Whose times were shifted, by how much, and how wrong that may be.
std::string RanksJson(const TraceCapture& capture) {
  if (capture.ranks.empty()) return "";
  std::string text = ",\"ranks\":[";
  const char* comma = "";
  for (const RankClock& rank : capture.ranks) {
    absl::StrAppend(&text, comma, "{\"rank\":", rank.rank, ",\"clock_ahead_nanos\":", rank.ahead_nanos,
                    ",\"clock_uncertainty_nanos\":", rank.uncertainty_nanos,
                    ",\"missing\":", rank.missing ? "true" : "false", "}");
    comma = ",";
  }
  return text + "]";
}

// The colours of the states as all other pictures of ours have them.
std::string ColoursJson() {
  std::string text;
  for (const StageStateInfo& info : StageStates()) {
    absl::StrAppendFormat(&text, "%s\"%s\":\"%s\"", text.empty() ? "{" : ",", std::string(info.name),
                          std::string(info.colour));
  }
  return text + "}";
}

class ChromeTraceWriter final : public TraceWriter {
 public:
  void Begin(const TraceCapture& capture, std::string* out) override {
    absl::StrAppend(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"pipeline\":\"", JsonEscape(capture.pipeline),
                    "\",\"rank\":", capture.rank, ",\"begin_nanos\":", capture.begin_nanos,
                    ",\"end_nanos\":", capture.end_nanos, ",\"incomplete\":", capture.incomplete ? "true" : "false",
                    ",\"lost_records\":", capture.lost, ",\"clock_offset_nanos\":", capture.wall_offset_nanos,
                    ",\"clock_uncertainty_nanos\":", capture.wall_uncertainty_nanos, RanksJson(capture),
                    ",\"counters_begin\":", CountersJson(capture, &LaneCapture::before),
                    ",\"counters_end\":", CountersJson(capture, &LaneCapture::after),
                    ",\"state_colours\":", ColoursJson(), "},\n\"traceEvents\":[");
  }

  void Track(const TraceTrack& track, std::string* out) override {
    if (track.process) {
      Metadata(track, "process_name", absl::StrCat("\"name\":\"", JsonEscape(track.name), "\""), out);
      Metadata(track, "process_sort_index", absl::StrCat("\"sort_index\":", track.group), out);
    } else if (!track.counter && track.lane == nullptr) {  // a lane within a rank has nothing on its own track
      Metadata(track, "thread_name", absl::StrCat("\"name\":\"", JsonEscape(track.name), "\""), out);
      Metadata(track, "thread_sort_index", absl::StrCat("\"sort_index\":", track.order), out);
    }
  }

  void Slice(const TraceTrack& track, const TraceSlice& slice, std::string* out) override {
    Open("X", track, out);
    absl::StrAppend(out, ",\"ts\":", Micros(slice.begin_nanos),
                    ",\"dur\":", Micros(slice.end_nanos - slice.begin_nanos), ",\"name\":\"", JsonEscape(slice.name),
                    "\",\"cat\":\"", slice.category, "\"");
    if (slice.state.has_value()) {
      const std::string_view colour = colours_[static_cast<size_t>(*slice.state)];
      absl::StrAppend(out, ",\"cname\":\"", absl::string_view(colour.data(), colour.size()), "\"");
    }
    if (!slice.arguments.empty() || !slice.texts.empty()) {
      out->append(",\"args\":{");
      const char* comma = "";
      for (const auto& [name, value] : slice.arguments) {
        absl::StrAppend(out, comma, "\"", name, "\":", value);
        comma = ",";
      }
      for (const auto& [name, text] : slice.texts) {
        absl::StrAppend(out, comma, "\"", name, "\":\"", JsonEscape(text), "\"");
        comma = ",";
      }
      out->append("}");
    }
    out->append("}");
    for (const FlowPoint& point : slice.flows) {
      const bool begin = point.kind == FlowPoint::Kind::kBegin;
      const bool end = point.kind == FlowPoint::Kind::kEnd;
      Open(begin ? "s" : end ? "f" : "t", track, out);
      absl::StrAppend(out, ",\"ts\":", Micros(slice.begin_nanos), ",\"id\":", point.flow,
                      ",\"name\":\"message\",\"cat\":\"flow\"", end ? ",\"bp\":\"e\"}" : "}");
    }
  }

  void Count(const TraceTrack& track, int64_t at_nanos, double value, std::string* out) override {
    Open("C", track, out);
    absl::StrAppend(out, ",\"ts\":", Micros(at_nanos), ",\"name\":\"", JsonEscape(track.name),
                    "\",\"args\":{\"value\":", value, "}}");
  }

  void End(std::string* out) override { out->append("\n]}\n"); }

 private:
  static std::array<std::string_view, kStageStateCount> StateColours() {
    std::array<std::string_view, kStageStateCount> colours;
    for (const StageStateInfo& info : StageStates()) {
      colours[static_cast<size_t>(info.state)] = NearestChromeColour(info.colour);
    }
    return colours;
  }

  void Open(const char* phase, const TraceTrack& track, std::string* out) {
    absl::StrAppend(out, first_ ? "\n" : ",\n", "{\"ph\":\"", phase, "\",\"pid\":", track.group, ",\"tid\":", track.id);
    first_ = false;
  }

  void Metadata(const TraceTrack& track, const char* name, const std::string& arguments, std::string* out) {
    Open("M", track, out);
    absl::StrAppend(out, ",\"name\":\"", name, "\",\"args\":{", arguments, "}}");
  }

  const std::array<std::string_view, kStageStateCount> colours_ = StateColours();
  bool first_ = true;
};

}  // namespace

std::unique_ptr<TraceWriter> MakeChromeTraceWriter() { return std::make_unique<ChromeTraceWriter>(); }

}  // namespace penstock
