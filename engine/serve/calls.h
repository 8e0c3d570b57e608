#pragma once

// What callers ask of a hosted pipeline, and what they get at once. Plain values.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/exec/pipeline.h"
#include "engine/handles/handle_name.h"
#include "engine/observe/call_observer.h"
#include "engine/tensor/value.h"

namespace penstock {

// Who calls, how, and for how long.
struct CallContext {
  std::string caller = {};
  std::string session = {};                            // which of the caller's programs; empty: it does not say
  std::string request_id = {};                         // empty: none; the edge has checked the form
  std::string payload_digest = {};                     // of everything but the request_id and how to reply
  std::string expected_state = {};                     // empty: any
  absl::Duration lease = absl::ZeroDuration();         // of the results; 0: the default
  absl::Duration work_timeout = absl::ZeroDuration();  // 0: the method's default
  std::shared_ptr<CallObserver> observer = {};         // null: nobody wants to hear how it went
  std::shared_ptr<void> place = {};                    // the caller's in the admission; dropped when the work ends
};

// A tensor of a handle, finished or not. An empty tensor name means the only one.
struct HandleTensor {
  HandleName handle = {};
  std::string tensor = {};
};

// One named value of a call.
struct InputSource {
  std::string name = {};
  std::variant<at::Tensor, HandleTensor, Value> source = {};  // Value: no tensor
  bool whole = false;  // of a tensor: it is not split, every micro-batch gets all of it
};

struct InferCall {
  std::vector<InputSource> inputs = {};
  std::vector<std::string> outputs = {};  // wanted; empty: all
  std::optional<int> micro_batches = {};
  int32_t priority = 0;  // higher first among those that wait
};

struct ForwardCall {
  std::vector<InputSource> inputs = {};
  std::vector<std::string> outputs = {};
  std::optional<int> micro_batches = {};
  bool input_gradients = false;  // the Backward may answer those of the inputs
};

struct BackwardCall {
  HandleName graph = {};
  std::vector<InputSource> gradients = {};
  bool retain_graph = false;
  bool input_gradients = false;  // answered as outputs; the Forward must have asked for them
  absl::Duration accumulation_lease = absl::ZeroDuration();  // as ContributionCall's
};

struct ContributionCall {
  std::vector<InputSource> inputs = {};
  std::optional<InputSource> target = {};  // its name does not matter; unset where the loss needs none
  std::optional<LossSpec> loss = {};
  std::optional<int> micro_batches = {};
  std::optional<int64_t> total_rows = {};      // ForwardBackward only
  std::optional<int64_t> total_elements = {};  // ForwardBackward only
  std::vector<std::string> outputs = {};       // to keep
  // ForwardBackward only: what is accumulated is discarded unless another contribution or the step comes in so long; 0: never.
  absl::Duration accumulation_lease = absl::ZeroDuration();
};

struct StepCall {
  bool discard = false;  // OptimizerStep only: forgets the gradients instead
  bool force = false;    // of a discard: those of any caller
  StepRequest request = {};
};

// The answer to every work call: it has its place, and here is where its results will be.
struct Accepted {
  std::string request_id = {};
  int64_t sequence = 0;  // 0 for inference
  int64_t step = 0;      // finished steps when it was accepted
  std::optional<HandleName> outcome = {};
  std::optional<HandleName> outputs = {};
  std::optional<HandleName> graph = {};

  std::vector<HandleName> handles() const;
};

// The answer to a save or restore.
struct StateAnswer {
  CheckpointInfo checkpoint = {};
  int64_t step = 0;
  std::string state_token = {};
  int64_t sequence = 0;
};

// Parameters of one step. Those who read the same step share its tensors.
struct ParameterSnapshot {
  int64_t step = 0;
  NamedTensors tensors = {};
};

}  // namespace penstock
