#pragma once

// How calls end: their handles settle, their observers hear of it, metrics and log lines tell of it.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/exec/outcome.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/trace_capture.h"
#include "engine/serve/call.h"
#include "engine/serve/call_runner.h"

namespace penstock {

class Clock;
class PipelineMetrics;

// Tells everybody outside of the pipeline how a call went.
//
// Model:     Each call is settled by whoever made it kDone, once; a handle that has settled already stays as it is.
// Owns:      The last calls that have ended. HandleStore, Clock and PipelineMetrics (may be null) must outlive it.
// Threads:   Any; under no lock of the caller, for stores and observers may call back.
class Settlement {
 public:
  Settlement(std::string name, HandleStore* handles, Clock* clock, std::shared_ptr<PipelineMetrics> metrics)
      : name_(std::move(name)), handles_(handles), clock_(clock), metrics_(std::move(metrics)) {}

  // Fails, or cancels, the call's handles. Returns what is told: the error with pipeline and ids of the call.
  absl::Status Fail(const Call& call, const absl::Status& error);
  // Fulfils the handles of a call of the training order, after graphs that went stale.
  void Fulfil(const Call& call, Executed executed, const std::string& token, const std::vector<HandleId>& stale_graphs);
  // Fulfils the handle of an inference.
  void Fulfil(const Call& call, const ForwardOutcome& outcome);

  // A run begins: counts how long the call has waited.
  void CountStart(const Call& call);
  // A run has ended, well or not. `run`: null where there is none.
  void CountEnd(const Call& call, const absl::Status& status, const Executed* executed);
  // Keeps how a call went, and tells its observer, if it has one. `step`: as trace records have it, or 0.
  void ReportEnd(const Call& call, int64_t step, const absl::Status& status);

  // The last calls that have ended, in the order of their ends; some hundreds are kept.
  std::vector<CallSpan> EndedCalls() const ABSL_LOCKS_EXCLUDED(mu_);
  // What log lines of a run name.
  std::vector<std::pair<std::string, std::string>> LogFieldsOf(const Call& call, int64_t step) const;

 private:
  static constexpr size_t kMaxEndedCalls = 512;

  // What is more than a handle may hold fails it by name.
  void FulfilValues(const HandleId& id, NamedValues values);
  void LogCheckpoint(const Call& call, const absl::Status& status, const Executed* executed) const;

  const std::string name_;
  HandleStore* const handles_;
  Clock* const clock_;
  const std::shared_ptr<PipelineMetrics> metrics_;

  mutable absl::Mutex mu_;
  std::deque<CallSpan> ended_ ABSL_GUARDED_BY(mu_);  // newest last, at most kMaxEndedCalls
};

}  // namespace penstock
