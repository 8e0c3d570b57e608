#pragma once

// What the engine and the server count, grouped by owner. Each group is a set of cells that its owner writes and a
// scrape reads; the names that Prometheus sees stand elsewhere.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/observe/histogram.h"
#include "engine/observe/memory_cells.h"
#include "engine/observe/metric_labels.h"
#include "engine/observe/state_clock.h"
#include "engine/observe/trace_ring.h"

namespace penstock {

// Histograms of one kind of bucket, which an array can default-construct.
struct PhaseHistogram : DurationHistogram {
  PhaseHistogram() : DurationHistogram(PhaseBuckets()) {}
};
struct CallHistogram : DurationHistogram {
  CallHistogram() : DurationHistogram(CallBuckets()) {}
};
struct CheckpointHistogram : DurationHistogram {
  CheckpointHistogram() : DurationHistogram(CheckpointBuckets()) {}
};

// Keeps the last instant at which something happened.
//
// Threads:   any method from any thread, without a lock; two marks at once leave one of them.
// Units:     seconds of wall time since 1970; 0 until the first Mark().
class TimestampCell {
 public:
  void Mark(Clock* clock) { unix_nanos_.store(absl::ToUnixNanos(clock->WallNow()), std::memory_order_relaxed); }
  double seconds() const { return static_cast<double>(unix_nanos_.load(std::memory_order_relaxed)) * 1e-9; }

 private:
  std::atomic<int64_t> unix_nanos_ = 0;
};

// A way on which a lane sends messages.
struct LinkDescription {
  int to = 0;  // lane
  LinkKind kind = LinkKind::kActivation;

  bool operator==(const LinkDescription&) const = default;
};

// One lane, as its labels tell it.
struct LaneDescription {
  int lane = 0;                             // index of the lane in its pipeline
  std::string device = {};                  // "cpu:0"
  std::string layers = {};                  // "0-3", of several chunks "0-3,8-11"
  Rank rank = {};                           // process
  std::string device_uuid = {};             // empty where the device has none
  double ideal_bubble = 0;                  // from the simulator with equal costs
  double predicted_bubble = 0;              // from the simulator with profiled costs
  std::vector<LinkDescription> links = {};  // each once
};

// What was sent on one link. The sender writes.
struct LinkMetrics {
  explicit LinkMetrics(LinkDescription description) : description(description) {}

  const LinkDescription description;
  CounterCell bytes;
  CounterCell nanos;  // that sending took
};

// What one lane counts, and what it did of late. The lane writes, anyone reads.
struct LaneMetrics {
  LaneMetrics(Clock* clock, LaneDescription description, int64_t trace_events = TraceRing::kDefaultEvents);

  // An action of a phase has ended: counts its duration and marks progress.
  void ObservePhase(Phase phase, int64_t nanos) {
    phases[phase].Observe(nanos);
    last_progress.Mark(clock);
  }

  // The way to another lane, or null where none was announced.
  LinkMetrics* LinkTo(LinkDescription link) const;

  Clock* const clock;
  const LaneDescription description;
  LaneTrace trace;
  StateClock state;
  CellsBy<Phase, PhaseHistogram, kPhaseNames.size()> phases;
  TimestampCell last_progress;       // starts at creation
  GaugeCell inflight_micro_batches;  // forwards whose backward has not run
  CounterCell recomputed_bytes;      // activations computed a second time
  CounterCell out_of_memory;         // actions that failed for want of the device's memory
  CounterCell compute_nanos;         // in which a CPU ran actions, as the kernel accounts for its thread
  const std::shared_ptr<MemoryCells> memory = std::make_shared<MemoryCells>();
  std::vector<std::unique_ptr<LinkMetrics>> links;  // constant after construction
  GaugeCell ideal_bubble;
  GaugeCell predicted_bubble;
};

// One queue of a pipeline, in micro-batches.
struct QueueMetrics {
  GaugeCell depth;
  GaugeCell capacity;
  // When the head of the queue was put in, in monotonic nanoseconds of the registry's clock; kEmpty without a head.
  static constexpr int64_t kEmpty = -1;
  std::atomic<int64_t> oldest_nanos = kEmpty;
  CallHistogram wait;

  // 0 when empty.
  double OldestAgeSeconds(int64_t now_nanos) const;
};

// The schedule that a pipeline runs in training.
struct ScheduleDescription {
  std::string kind = {};  // "1f1b"
  int stages = 0;         // lanes, as in their labels
  int chunks = 1;         // per lane
  int micro_batches = 0;
  std::string checkpoint_mode = {};  // "except_last"

  bool operator==(const ScheduleDescription&) const = default;
};

// What one pipeline counts, its lanes included.
//
// Owns:      its lanes; their number never changes, so references to them stay good as long as this lives.
// Threads:   cells from any thread; SetSchedule() and schedule() from any thread under a lock.
class PipelineMetrics {
 public:
  PipelineMetrics(Clock* clock, std::string name, const std::vector<LaneDescription>& lanes,
                  ScheduleDescription schedule, int64_t trace_events = TraceRing::kDefaultEvents);

  Clock* clock() const { return clock_; }

  const std::string& name() const { return name_; }
  int lane_count() const { return static_cast<int>(lanes_.size()); }
  LaneMetrics& lane(int lane) { return *lanes_.at(lane); }
  const LaneMetrics& lane(int lane) const { return *lanes_.at(lane); }

  void SetSchedule(ScheduleDescription schedule) ABSL_LOCKS_EXCLUDED(mu_);
  ScheduleDescription schedule() const ABSL_LOCKS_EXCLUDED(mu_);

  // The time of every lane at one instant, lane 0 first.
  std::vector<StateTimes> LaneTimes(int64_t now_nanos) const;

  // Whether there are lanes, and what they do is kept in trace rings.
  bool KeepsTraces() const { return !lanes_.empty() && lanes_.front()->trace.actions.capacity() > 0; }

  // Records of all lanes' trace rings that were overwritten.
  int64_t TraceDropped() const;

  // Time by which transitions of all lanes' states were put off, so that no shown time falls.
  int64_t ClampedNanos() const;

  // A batch has begun to run, or has ended. `duration_nanos` counts from acceptance to ready.
  void BatchStarted(BatchMode mode);
  void BatchEnded(BatchMode mode, BatchOutcome outcome, int64_t samples, int64_t duration_nanos);

  // A save or restore has ended; a good save marks the time of the last success.
  void CheckpointEnded(CheckpointOperation operation, bool ok, int64_t duration_nanos);

  CellsBy<BatchMode, CounterCell, kBatchModeNames.size()> batches_started;
  CellsBy<BatchMode, CellsBy<BatchOutcome, CounterCell, kBatchOutcomeNames.size()>, kBatchModeNames.size()> batches;
  CellsBy<BatchMode, CounterCell, kBatchModeNames.size()> samples;
  CellsBy<BatchMode, CallHistogram, kBatchModeNames.size()> batch_duration;
  CellsBy<BatchMode, GaugeCell, kBatchModeNames.size()> runs_active;
  CounterCell inference_runs;  // of the stages, each for one batch of requests; evaluations are not counted
  GaugeCell step_number;
  GaugeCell loss;
  CellsBy<NonfiniteKind, CounterCell, kNonfiniteKindNames.size()> nonfinite_steps;
  CellsBy<WorkQueue, QueueMetrics, kWorkQueueNames.size()> queues;
  CellsBy<RejectReason, CounterCell, kRejectReasonNames.size()> rejected;
  CellsBy<CheckpointOperation, CheckpointHistogram, kCheckpointOperationNames.size()> checkpoint_duration;
  CellsBy<CheckpointOperation, CounterCell, kCheckpointOperationNames.size()> checkpoint_failures;
  TimestampCell checkpoint_last_success;  // starts at creation
  GaugeCell checkpoint_bytes;             // of the last good save

 private:
  Clock* const clock_;
  const std::string name_;
  std::vector<std::unique_ptr<LaneMetrics>> lanes_;  // constant after construction

  mutable absl::Mutex mu_;
  ScheduleDescription schedule_ ABSL_GUARDED_BY(mu_);
};

// One method of the remote interface.
struct MethodMetrics {
  MethodMetrics(std::string type, std::string service, std::string method)
      : type(std::move(type)), service(std::move(service)), method(std::move(method)) {}

  // A call has ended with a code of gRPC; a number outside the table counts as Unknown.
  void Handled(int code, int64_t nanos);

  const std::string type;     // "unary", "server_stream", "client_stream", "bidi_stream"
  const std::string service;  // "penstock.v1.WorkService"
  const std::string method;   // "TrainStep"
  CounterCell started;
  std::array<CounterCell, kGrpcCodeNames.size()> handled_by_code;
  CallHistogram duration;
  CounterCell messages_received;
  CounterCell messages_sent;
};

// What this process has taken of a device's memory, in bytes.
struct AllocatorBytes {
  int64_t allocated = 0;  // given to tensors
  int64_t cached = 0;     // kept for the next ones
};

// A device of the daemon.
struct DeviceDescription {
  std::string name;                // "cpu:0"
  int64_t memory_limit_bytes = 0;  // that may be placed there
  // What its allocator counts now; nothing where none counts. From any thread, throws nothing; empty: as if nothing.
  std::function<std::optional<AllocatorBytes>()> allocator = {};
};

// What this build is.
struct BuildDescription {
  std::string version;
  std::string commit;
  std::string cuda;  // empty without CUDA
  std::string torch;
};

// What the daemon counts beside its pipelines. One instance, in the registry.
//
// Threads:   cells from any thread; the other methods from any thread under a lock.
class ServerMetrics {
 public:
  ServerMetrics();

  CellsBy<HandleGauge, GaugeCell, kHandleGaugeNames.size()> handles;
  CellsBy<HandleTier, GaugeCell, kHandleTierNames.size()> handle_bytes;
  CellsBy<HandleTier, GaugeCell, kHandleTierNames.size()> handle_limit_bytes;
  CellsBy<HandleEnd, CounterCell, kHandleEndNames.size()> handles_ended;
  GaugeCell host_memory_claimed;  // bytes, of host_memory_limit
  GaugeCell host_memory_limit;
  GaugeCell ready;  // 0 or 1
  CellsBy<ReadyCondition, GaugeCell, kReadyConditionNames.size()> ready_conditions;
  CellsBy<Denial, CounterCell, kDenialNames.size()> calls_denied;
  CounterCell credential_files_refused;
  GaugeCell certificate_end;  // Unix seconds; 0: there is none
  CellsBy<AuditOutcome, CounterCell, kAuditOutcomeNames.size()> audit_records;

  // Adds a method, or returns the one that is there. The reference stays good as long as this lives. Register every
  // method at start, so that its numbers exist before its first call.
  MethodMetrics& AddMethod(std::string_view type, std::string_view service, std::string_view method)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The method of a path "/service/method"; the one called "other" for a path that was never added.
  MethodMetrics& MethodOf(std::string_view path) ABSL_LOCKS_EXCLUDED(mu_);
  // Every method, in the order of their paths.
  std::vector<const MethodMetrics*> methods() const ABSL_LOCKS_EXCLUDED(mu_);

  void SetBuild(BuildDescription build) ABSL_LOCKS_EXCLUDED(mu_);
  BuildDescription build() const ABSL_LOCKS_EXCLUDED(mu_);

  void SetDevices(std::vector<DeviceDescription> devices) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<DeviceDescription> devices() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::unique_ptr<MethodMetrics>, std::less<>> methods_ ABSL_GUARDED_BY(mu_);
  BuildDescription build_ ABSL_GUARDED_BY(mu_);
  std::vector<DeviceDescription> devices_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
