#pragma once

// What callers ask of a served pipeline, and what they get at once. Plain values.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/exec/pipeline.h"
#include "engine/handles/handle_name.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/observe/call_observer.h"
#include "engine/serve/durability.h"
#include "engine/serve/made_engine.h"
#include "engine/tensor/value.h"

namespace penstock {

struct InferenceWeights;

// What every call carries beside its tensors: caller, ids, lease, timeout.
struct CallContext {
  std::string caller = {};
  std::string session = {};          // which of the caller's programs; empty: it does not say
  std::string request_id = {};       // empty: none; the edge has checked the form
  std::string payload_digest = {};   // of everything but the request_id and how to reply
  std::string record = {};           // of a call that changes state: the request without its values, for the journal
  std::string recorded_digest = {};  // as payload_digest, but whatever the names of handles
  std::string expected_state = {};   // empty: any
  absl::Duration lease = absl::ZeroDuration();          // of the results; 0: the default
  absl::Duration work_timeout = absl::ZeroDuration();   // 0: the method's default
  std::shared_ptr<CallObserver> observer = {};          // null: nobody wants to hear how it went
  std::shared_ptr<void> place = {};                     // the caller's in the admission; the call drops it at its end
  std::shared_ptr<MemoryReservation> inputs_held = {};  // of what came with the call; null: nobody counts it
  // Of an inference, from its acceptance to its end: what it runs on. Null: the live weights.
  std::shared_ptr<const InferenceWeights> weights = {};
};

// A tensor of a handle, finished or not, or one of its values. An empty name means the only one.
struct HandleTensor {
  HandleName handle = {};
  std::string tensor = {};
  std::string field = {};  // where it stands in the request, for errors: "inputs[0].handle"; empty: in its input itself
};

// One named value of a call.
struct InputSource {
  std::string name = {};
  std::variant<at::Tensor, HandleTensor, Value> source = {};  // Value: no tensor by itself
  bool whole = false;  // of a tensor: it is not split, every micro-batch gets all of it
  // The tensors that stand for the undefined ones of a Value, in the order of Value::MapTensors.
  std::vector<HandleTensor> inside = {};
};

// Each holds the engine's own request: all of it but the tensors and the cancel token, which the call has once it runs.
struct InferCall {
  std::vector<InputSource> inputs = {};
  ForwardRequest request = {};  // its priority: higher first among those that wait
  int64_t reply_bytes = 0;      // outputs of at most so many go with the reply: they are made on the host
  std::string version = {};     // of the weights, as PublishedWeights::Select()
};

struct ForwardCall {
  std::vector<InputSource> inputs = {};
  ForwardRequest request = {};
  int64_t reply_bytes = 0;  // as an InferCall's
};

struct BackwardCall {
  HandleName graph = {};
  std::vector<InputSource> gradients = {};
  bool retain_graph = false;
  bool input_gradients = false;  // returned as outputs; the Forward must have asked for them
  absl::Duration accumulation_lease = absl::ZeroDuration();  // as ContributionCall's
};

// ForwardBackward; with a StepRequest, TrainStep.
struct ContributionCall {
  std::vector<InputSource> inputs = {};
  std::optional<InputSource> target = {};   // its name does not matter; unset where the loss needs none
  std::optional<InputSource> weights = {};  // of the target's elements, in the same way; unset: all weigh 1
  ContributionRequest request = {};
  // ForwardBackward only: what is accumulated is discarded unless another contribution or the step comes in so long; 0:
  // never.
  absl::Duration accumulation_lease = absl::ZeroDuration();
};

struct TrainStepCall {
  ContributionCall contribution = {};
  StepRequest step = {};
};

// Runs beside training, as an inference.
struct EvaluateCall {
  ContributionCall batch = {};
  std::vector<std::string> metrics = {};
  int32_t priority = 0;  // as InferCall's
};

// OptimizerStep.
struct StepCall {
  bool discard = false;  // forgets the gradients instead
  bool force = false;    // of a discard: those of any caller
  StepRequest request = {};
};

// Discards an accumulation whose lease is over. The pipeline makes this call itself; no client does.
struct ExpireCall {};

struct SaveCall {
  std::string id = {};   // empty: step-{n}
  bool replace = false;  // a checkpoint of this name
  // After success, of the checkpoints that were saved with a number here the oldest beyond this number are deleted, but
  // not the one that was last restored from. 0: nothing is deleted, and no later save deletes this one.
  int keep = 0;
  bool last = false;  // of the pipeline's life: it finds its identifier itself, and can be cancelled
};

// Takes in a checkpoint of another pipeline of the same model, or another of its own under a new name.
struct CopyCall {
  std::shared_ptr<CheckpointFolder> source = {};
  std::string source_id = {};
  std::string id = {};  // empty: as the source
};

struct RestoreCall {
  std::string id = {};
  bool force = false;  // discards what is accumulated
};

// Replaces what the tensors of ready handles name, and the step if it is given.
struct WriteCall {
  std::vector<HandleName> handles = {};
  std::optional<int64_t> step = {};
  bool force = false;  // discards what is accumulated
};

struct DeleteCall {
  std::string id = {};
};

// What a read of parameters gives.
enum class ReadContent {
  kParameters,     // and buffers
  kWithOptimizer,  // and the optimizer's state
  kGradients,      // what is accumulated, instead
};

// Parameters, or gradients, of one step. Those who read the same share its tensors.
struct ParameterSnapshot {
  int64_t step = 0;
  NamedTensors tensors = {};
  std::shared_ptr<const void> held = {};  // the reservation of their memory; goes with them
};
using SnapshotCallback = std::function<void(absl::StatusOr<std::shared_ptr<const ParameterSnapshot>>)>;

// A read of parameters, which leaves the state as it is.
struct ReadCall {
  std::vector<std::string> names = {};  // empty: all
  ReadContent content = ReadContent::kParameters;
  SnapshotCallback done = {};  // called once
};

// Other settings of the optimizer.
struct UpdateOptimizerCall {
  OptimizerSpec optimizer = {};
};

// An automatic checkpoint, and the end of the calls that it holds in the journal.
struct CompactCall {
  bool first = false;  // a checkpoint also where the journal has no call, if it is the first one
};

// Another engine of the same model: another cut, schedule, devices or batching. Its state is that of the one before.
struct UpdateCall {
  std::shared_ptr<MadeEngine> engine = {};
  std::function<void()> done = {};  // called once it stands, before any call runs on it; may be null
};

// What a call asks for.
using Request = std::variant<InferCall, EvaluateCall, ForwardCall, BackwardCall, ContributionCall, TrainStepCall,
                             StepCall, ExpireCall, SaveCall, CopyCall, RestoreCall, WriteCall, DeleteCall, ReadCall,
                             UpdateOptimizerCall, CompactCall, UpdateCall>;

// The mini-batch with a target in it, or null.
inline const ContributionCall* ContributionOf(const Request& request) {
  if (const auto* evaluate = std::get_if<EvaluateCall>(&request)) return &evaluate->batch;
  if (const auto* step = std::get_if<TrainStepCall>(&request)) return &step->contribution;
  return std::get_if<ContributionCall>(&request);
}

// The answer to every work call: it has its place, and here is where its results will be.
struct Accepted {
  std::string request_id = {};
  int64_t sequence = 0;  // 0 for inference and evaluation
  int64_t step = 0;      // finished steps when it was accepted
  int64_t version = 0;   // of the weights, for an inference that is accepted now
  std::optional<HandleName> outcome = {};
  std::optional<HandleName> outputs = {};
  std::optional<HandleName> graph = {};
  std::shared_ptr<Durability> durable = {};  // null: there is nothing to wait for

  // Calls back when the caller may rely on it, or with why it is not accepted after all.
  void WhenDurable(Durability::Callback callback) const {
    if (durable == nullptr) return callback(absl::OkStatus());
    durable->Then(std::move(callback));
  }

  std::vector<HandleName> handles() const {
    std::vector<HandleName> names;
    for (const auto* name : {&outcome, &outputs, &graph}) {
      if (name->has_value()) names.push_back(**name);
    }
    return names;
  }
};

// What went from a journal.
struct CompactedJournal {
  int64_t calls = 0;
  int64_t bytes = 0;
};

// The answer to a save, copy, restore, write, delete, update or compaction.
struct StateAnswer {
  CheckpointInfo checkpoint = {};
  int64_t step = 0;
  std::string state_token = {};
  int64_t sequence = 0;
  CompactedJournal compacted = {};
};

}  // namespace penstock
