#pragma once

// A trace as a file that viewers open: Chrome's JSON (chrome://tracing, Perfetto, Speedscope) or Perfetto's protobuf.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_flows.h"
#include "engine/observe/trace_writer.h"

namespace penstock {

enum class TraceFormat { kChrome, kPerfetto };

// Writes a capture piece by piece.
//
// Model:     A capture with lanes of several ranks has a process for each, with the clocks' offsets and their doubt.
//            Tracks of the pipeline (its runs; inference where it overlaps; queues; calls, where they are known), and
//            below each lane one of its states, its actions, what it sends and receives, and how many micro-batches are
//            in flight. Flows follow each message from the action that made it to the one that used it. Counters of all
//            states at both ends are in the file too, with the offset to wall time and its uncertainty, and whether
//            records were lost.
// Threads:   one at a time.
// Units:     Chrome: microseconds with three decimals; Perfetto: nanoseconds; both of the daemon's monotonic clock.
class TraceExport {
 public:
  TraceExport(std::shared_ptr<const TraceCapture> capture, TraceFormat format);

  // The next piece, about `bytes` long; nothing once the file is whole.
  std::optional<std::string> Next(size_t bytes = 256 << 10);

 private:
  // What comes on one track, in the order of time; one of the three.
  struct Section {
    TraceTrack track = {};
    std::vector<TraceSlice> slices = {};
    std::vector<const TraceRecord*> records = {};         // of the capture
    std::vector<std::pair<int64_t, double>> values = {};  // of a counter

    size_t size() const { return slices.size() + records.size() + values.size(); }
  };

  void AddRuns();
  void AddQueues();
  void AddCalls();
  void AddRanks();
  void AddLane(size_t index);
  TraceSlice SliceOf(const TraceRecord& record) const;
  void WriteOne(const Section& section, std::string* out);

  const std::shared_ptr<const TraceCapture> capture_;
  const TraceFlows flows_;
  const std::unique_ptr<TraceWriter> writer_;
  std::vector<Section> sections_;
  size_t section_ = 0;
  size_t position_ = 0;  // in the section
  bool track_told_ = false;
  bool begun_ = false;
  bool ended_ = false;
};

// What a record is called: "2F0", "infer 2F0", "2SEND_F0", "2OPT norms", "wait_gradient".
std::string TraceName(const TraceRecord& record);

// "step 12", "step 12 contribution", "inference 7".
std::string RunName(const RunSpan& run);

}  // namespace penstock
