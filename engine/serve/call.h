#pragma once

// One accepted call, from its acceptance to its end.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/cancel_token.h"
#include "engine/base/timer_queue.h"
#include "engine/observe/metrics.h"
#include "engine/serve/call_inputs.h"
#include "engine/serve/calls.h"
#include "engine/serve/joined.h"
#include "engine/serve/request_log.h"
#include "engine/serve/training_state.h"

namespace penstock {

// The callers of one save, copy, restore, write, delete or update. Each callback comes once, when the work is done.
using StateJoin = Joined<StateAnswer>;
using StateCallback = StateJoin::Callback;

// What the request log keeps.
using RecordedAnswer = std::variant<Accepted, std::shared_ptr<StateJoin>>;
int64_t HeapBytes(const RecordedAnswer& answer);

// What follows from a request by itself.
const char* MethodName(const Request& request);                      // as on the wire: "TrainStep"
std::optional<TrainingCall> TrainingCallOf(const Request& request);  // unset: an inference or evaluation
std::optional<BatchMode> BatchModeOf(const Request& request);        // unset: it runs no mini-batch
// The names of all methods; a request_id is looked for under each.
const std::vector<const char*>& MethodNames();

// A call with all that its run needs.
//
// Model:     kNew until it is in a queue; then kQueued, kRunning, kDone. One that ends before it runs skips kRunning.
//            Whoever makes it kDone settles its handles.
// Threads:   the request never changes. What is guarded belongs to the lock of the pipeline that serves it, and is
//            reached through its ServedCalls, or by the queues that these hold; all else belongs to the thread that
//            accepts the call, and then to the one that runs it.
struct Call {
  enum class Phase { kNew, kQueued, kRunning, kDone };

  struct Guarded {
    Phase phase = Phase::kNew;
    bool inputs_ready = false;
    bool durable = true;    // of a call that stands in a journal: it may run
    bool appended = false;  // to the journal, or about to be
    bool recorded = false;  // its end, there too
    bool deadline_passed = false;
    size_t abandoned_handles = 0;
    TimerQueue::TimerId timer = TimerQueue::kNoTimer;
    std::shared_ptr<void> place = {};  // the caller's, while the work goes on

    // Goes on to a later phase; nothing else is possible.
    void Enter(Phase next);
    // To kDone, if it is not there.
    void Finish() {
      if (phase != Phase::kDone) Enter(Phase::kDone);
    }
  };

  Call(CallContext given_context, Request given_request)
      : context(std::move(given_context)),
        request(std::move(given_request)),
        training(TrainingCallOf(request)),
        mode(BatchModeOf(request)) {
    guarded_.place = std::exchange(context.place, nullptr);
  }

  CallContext context;  // without the place
  const Request request;
  const std::optional<TrainingCall> training;
  const std::optional<BatchMode> mode;

  CallInputs inputs;
  int graph_pin = -1;  // Backward: index of the graph among the inputs' pins
  bool inputs_checked = false;
  std::shared_ptr<StateJoin> join;  // of calls without handles
  Accepted accepted;
  std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
  int64_t rows = 0;            // of the inputs, once known
  bool outputs_stay = false;   // of an inference or Forward: on the device that makes them
  std::string batch_key = {};  // of an inference: it may run in one batch with those of the same key; empty: by itself
  int64_t queue_weight = 1;    // micro-batches, for the queue's gauges
  int64_t turn = 0;            // of an inference, from when it is its caller's next: CallerTurns
  int64_t accepted_nanos = 0;
  int64_t started_nanos = 0;  // 0: it has not; set by the thread that runs it
  int64_t read_version = 0;   // of what a read or a save copies, as it starts; set by the same thread
  bool again = false;         // it was accepted in a life before, which may have ended in the middle of it
  bool repeated = false;      // from the journal: what it takes did fit, and is not refused now
  int64_t state_version = 0;  // as it starts; set by the same thread, as the next two
  int64_t ended_before = 0;   // the sequence of the last call that ran before it
  bool at_boundary = false;   // of a save: whether what it saves is the effect of whole steps; set by the same thread
  int64_t forward_sequence = 0;  // of a Backward in a journal: of its Forward

  // The request as one of its kinds, or null.
  template <typename T>
  const T* As() const {
    return std::get_if<T>(&request);
  }
  const char* method() const { return MethodName(request); }
  TrainingParty party() const { return {context.caller, context.session}; }
  RequestKey key() const { return {context.caller, method(), context.request_id}; }
  int32_t priority() const;  // of an inference or evaluation
  // A run that may be stopped: it leaves nothing behind.
  bool stoppable() const {
    return mode == BatchMode::kInfer || mode == BatchMode::kEvaluate || mode == BatchMode::kForward;
  }

 private:
  friend struct ServedCalls;
  friend class InferenceQueue;
  friend class TrainingQueue;

  Guarded guarded_;
};
using CallPointer = std::shared_ptr<Call>;

// The error of a call that was cancelled.
absl::Status CancelledCall();
// Of a graph that no other Backward can use.
absl::Status GraphConsumed();
// UNAVAILABLE / DRAINING of one that stands in the journal and has not run: it runs after the restart.
absl::Status CallLeftInJournal();

}  // namespace penstock
