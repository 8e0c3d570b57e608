#pragma once

// A piece of the past of one pipeline, copied out of its rings: of all lanes, over one span of time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/observe/metrics.h"
#include "engine/observe/trace_ring.h"

namespace penstock {

// What one lane did. Spans of `states` follow each other without gap or overlap from the capture's begin to its end.
struct LaneCapture {
  LaneDescription description;
  std::vector<TraceRecord> actions;  // in the order of their ends; none began before the capture
  std::vector<TraceRecord> states;
  StateTimes before;  // the lane's counters at both ends
  StateTimes after;
};

// Calls of a pipeline that waited, at one instant.
struct QueueSample {
  int64_t at_nanos = 0;
  double train = 0;
  double infer = 0;
};

// One accepted call of a caller, which has ended.
struct CallSpan {
  std::string method = {};  // "TrainStep"
  std::string request_id = {};
  std::string trace_id = {};  // empty: of no trace
  int64_t accepted_nanos = 0;
  int64_t started_nanos = 0;  // 0: it ended before it ran
  int64_t ended_nanos = 0;
  int64_t step = 0;  // as records have it; 0: unknown
  bool failed = false;
};

// How the times of another rank came to be those of a capture.
struct RankClock {
  int rank = 0;
  int64_t ahead_nanos = 0;        // of this process's clock; taken from the rank's times
  int64_t uncertainty_nanos = 0;  // of that
  bool missing = false;           // it could not be asked: its lanes are empty
};

struct TraceCapture {
  std::string pipeline;
  int64_t begin_nanos = 0;  // monotonic
  int64_t end_nanos = 0;
  std::vector<LaneCapture> lanes;
  std::vector<QueueSample> queues;
  std::vector<CallSpan> calls;         // in the order of their acceptance; they may reach beyond both ends
  int64_t wall_offset_nanos = 0;       // wall time since 1970 minus monotonic time
  int64_t wall_uncertainty_nanos = 0;  // of that difference
  int rank = 0;                        // process
  std::vector<RankClock> ranks;        // others whose lanes were put in
  uint64_t lost = 0;                   // records of the asked span that had been overwritten
  bool incomplete = false;             // some were: the span is shorter than what was asked for
};

// Records from its construction on, past what the rings hold if Collect() is called often enough: what the lanes of this
// process do. Of others it has the descriptions alone.
//
// Model:     counters and ring positions of every lane at the begin; each Collect() copies what has come since. What
//            the rings lost in between, or what is beyond `max_records` of one ring, makes the capture begin later, and
//            incomplete.
// Owns:      a share of the metrics.
// Threads:   one thread at a time; the lanes go on meanwhile.
class TraceRecorder {
 public:
  // From now on, or from the oldest record that every ring still has.
  enum class From { kNow, kOldest };
  TraceRecorder(std::shared_ptr<const PipelineMetrics> metrics, From from, Rank self = Rank(0),
                int64_t max_records = 1 << 22);

  void Collect();
  // Optimizer steps that have ended on every lane since the begin, as far as collected; of a pipeline without lanes here,
  // those that it counts.
  int64_t steps_ended() const;
  // Collects, and returns everything until now.
  TraceCapture Finish();

 private:
  struct Lane {
    StateTimes before;  // of kNow
    uint64_t next_action = 0;
    uint64_t next_state = 0;
    std::vector<TraceRecord> actions;
    std::vector<TraceRecord> states;
    int64_t lost_until_nanos = 0;  // records that end before it may be missing
    int64_t steps = 0;
  };

  void Take(const TraceRing& ring, uint64_t until, uint64_t* next, std::vector<TraceRecord>* to, Lane* lane);
  void Sample(int64_t now);
  bool IsHere(size_t lane) const { return metrics_->lane(static_cast<int>(lane)).description.rank == self_; }

  const std::shared_ptr<const PipelineMetrics> metrics_;
  const From from_;
  const Rank self_;
  const int64_t max_records_;
  int64_t begin_nanos_ = 0;
  double first_step_ = 0;
  uint64_t lost_ = 0;
  std::vector<Lane> lanes_;
  std::vector<QueueSample> queues_;
};

// The last `max_records` actions of each lane, without states and counters: cheap, for looking up one run.
// Incomplete if there were more.
TraceCapture CaptureActions(const PipelineMetrics& metrics, uint64_t max_records);

// The part of a capture from `begin_nanos` to `end_nanos`: states are cut at both, actions must lie between. Counters
// at the new ends follow from the spans that were cut off.
TraceCapture CutTrace(const TraceCapture& capture, int64_t begin_nanos, int64_t end_nanos);

// How many lanes a capture has: all but those of ranks that are missing.
int LanesThere(const TraceCapture& capture);

// The part that holds the optimizer steps from `first` to `last`, as Outcome.step counts them, both included.
//
// Fails:     OUT_OF_RANGE / STEP_NOT_RETAINED for a step that has not ended yet, or is not in the capture any more.
absl::StatusOr<TraceCapture> CutTraceToSteps(const TraceCapture& capture, int64_t first, int64_t last);

// Adds those calls that touch the time of a capture. After the last cut, which forgets them.
void AddCalls(std::vector<CallSpan> calls, TraceCapture* capture);

// The runs of a capture on its lanes: what each was for, and when.
struct RunSpan {
  int64_t run = 0;
  int64_t step = 0;
  TraceRun purpose = TraceRun::kTrainStep;
  int micro_batches = 0;
  int64_t begin_nanos = 0;
  int64_t end_nanos = 0;
  int lanes = 0;  // that have left it; below the capture's number: it is not whole
  bool failed = false;
};
// In the order of their begin.
std::vector<RunSpan> RunsOf(const TraceCapture& capture);

inline bool Trains(TraceRun purpose) { return purpose != TraceRun::kInference; }
// Whether the run ends an optimizer step.
inline bool EndsStep(TraceRun purpose) {
  return purpose == TraceRun::kTrainStep || purpose == TraceRun::kOptimizerStep;
}

}  // namespace penstock
