#pragma once

// The raw form of ModelInfer: its tensors stay where gRPC put them until each is copied once.

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/model/model_spec.h"
#include "engine/serve/calls.h"
#include "engine/tensor/named_tensors.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/grpc_service.pb.h"
#include "server/rpc/convert/wire_reader.h"

namespace penstock {

// A ModelInfer request, split: everything but the raw contents as a message, those as pieces.
struct SplitInferRequest {
  inference::ModelInferRequest message;
  std::vector<Pieces> raw_contents;
};

// Splits a received request.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID: no such message, more than 64 inputs, outputs, raw
//            contents or parameters, a field that is not of the protocol, and as CheckMessageEntries();
//            RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE: more than 4 MiB beside the raw contents.
absl::StatusOr<SplitInferRequest> SplitRequest(const Pieces& bytes);

// What a request asks beside its tensors.
struct InferenceParameters {
  absl::Duration timeout = absl::ZeroDuration();  // 0: none
  int32_t priority = 0;                           // as InferCall's: higher first
};

// Levels that a request may ask for: 1 goes first, and all of them go before the default, which 0 asks for, and numbers
// beyond them.
inline constexpr int64_t kPriorityLevels = 1000;

// Reads the reserved keys. Keys that are not reserved are the model's, and ours has none: ignored.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID for sequences, a negative priority or
//            timeout, unknown triton_ keys; UNIMPLEMENTED / FEATURE_DISABLED for shared memory.
absl::StatusOr<InferenceParameters> ReadParameters(const inference::ModelInferRequest& request);

// The input tensors, each copied once.
//
// Fails:     TENSOR_HEADER, TENSOR_TOO_LARGE, FIELD_INVALID for contents given twice or not at all.
absl::StatusOr<std::vector<InputSource>> DecodeInputs(const SplitInferRequest& request);

// The answer, its tensors as raw contents that share their memory with it.
absl::StatusOr<grpc::ByteBuffer> EncodeAnswer(const inference::ModelInferRequest& request, const NamedTensors& outputs);

}  // namespace penstock
