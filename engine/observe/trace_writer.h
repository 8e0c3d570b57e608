#pragma once

// How one format writes tracks, slices and counters; trace_export.h decides what is written.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_flows.h"

namespace penstock {

// A row of the picture.
struct TraceTrack {
  uint64_t id = 0;      // unique, above 0
  uint64_t parent = 0;  // 0: none
  int group = 0;        // 0: the pipeline's own; lane + 1
  int order = 0;        // among its siblings
  std::string name = {};
  bool counter = false;
  bool process = false;               // viewers show it and what is in its group as a process
  const LaneCapture* lane = nullptr;  // whose track it is
  const RankClock* rank = nullptr;    // the same
};

struct TraceSlice {
  int64_t begin_nanos = 0;
  int64_t end_nanos = 0;
  std::string name = {};
  const char* category = "";
  std::vector<std::pair<const char*, int64_t>> arguments = {};
  std::vector<std::pair<const char*, std::string>> texts = {};
  std::span<const FlowPoint> flows = {};
  std::optional<StageState> state = {};  // that it shows: it has a colour
};

// Appends a file of one format to a string.
//
// Threads:   one at a time.
// Lifecycle: Begin(), then each track followed by what is on it, then End().
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  virtual void Begin(const TraceCapture& capture, std::string* out) = 0;
  virtual void Track(const TraceTrack& track, std::string* out) = 0;
  virtual void Slice(const TraceTrack& track, const TraceSlice& slice, std::string* out) = 0;
  virtual void Count(const TraceTrack& track, int64_t at_nanos, double value, std::string* out) = 0;
  virtual void End(std::string* out) = 0;
};

std::unique_ptr<TraceWriter> MakeChromeTraceWriter();
std::unique_ptr<TraceWriter> MakePerfettoTraceWriter();

}  // namespace penstock
