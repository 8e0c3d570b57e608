#pragma once

// What each method asks for before it is accepted: inputs that exist and fit, and room for results.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/serve/call.h"
#include "engine/serve/call_inputs.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/calls.h"

namespace penstock {

class HandleStore;
class Pipeline;

// Which handles a call needs, and how large its outputs will be.
struct CallResults {
  bool outcome = false;
  bool outputs = false;
  bool graph = false;
  int64_t output_bytes = 0;
};

// The values of a request, apart from it, so that they are freed when the call drops its inputs.
struct CallSources {
  std::vector<InputSource> inputs = {};
  std::optional<InputSource> target = {};
  std::optional<InputSource> weights = {};
};

// Takes them out. What stays of a target or of weights says only that there are some.
CallSources TakeSources(Request& request);

// Pins and checks the inputs of calls.
//
// Owns:      nothing; what it is made of outlives it.
// Threads:   any, for calls that are theirs; under no lock.
// Fails:     TENSOR_SIGNATURE, FIELD_INVALID; reasons of handles, naming the field.
class CallPreparation {
 public:
  CallPreparation(std::string pipeline_name, HandleStore* handles, const Pipeline* pipeline, const CallRunner* runner)
      : name_(std::move(pipeline_name)), handles_(handles), pipeline_(pipeline), runner_(runner) {}

  // Of a call with handles for its results: pins its inputs, checks what is there, and says which results there will
  // be.
  absl::StatusOr<CallResults> Prepare(Call& call, CallSources sources) const;
  // Pins the handles of a write, which must be ready.
  absl::StatusOr<CallInputs> PinWritten(const std::string& caller, const WriteCall& write) const;

 private:
  absl::StatusOr<CallResults> PrepareForward(Call& call, CallSources sources, std::optional<int> micro_batches) const;
  absl::StatusOr<CallResults> PrepareBackward(Call& call, const BackwardCall& backward, CallSources sources) const;
  absl::StatusOr<CallResults> PrepareContribution(Call& call, const ContributionCall& contribution,
                                                  CallSources sources) const;
  absl::Status PinInputs(Call& call, std::vector<InputSource> inputs, const std::string& field) const;
  int64_t MicroBatches(std::optional<int> asked) const;

  const std::string name_;
  HandleStore* const handles_;
  const Pipeline* const pipeline_;
  const CallRunner* const runner_;
};

}  // namespace penstock
