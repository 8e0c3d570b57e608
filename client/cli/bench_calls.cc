#include "client/cli/bench_calls.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "client/cli/byte_model.h"
#include "client/cli/exit_code.h"
#include "client/cli/tensor_file.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::StatusOr<v1::Input> MakeUp(const v1::TensorSignature& signature, const BenchInput& options) {
  std::vector<int64_t> shape(signature.shape().begin(), signature.shape().end());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == 0) shape[i] = options.rows;
    if (i > 0 && shape[i] < 0 && options.sequence > 0) shape[i] = options.sequence;
    if (shape[i] < 0) {
      return UsageError("--input",
                        "needed, or --sequence: the pipeline does not say how large " + signature.name() + " is");
    }
  }
  v1::TensorHeader message;
  message.set_name(signature.name());
  message.set_type(signature.type());
  for (const int64_t size : shape) message.add_shape(size);
  TensorHeader header = HostTensor::HeaderFromMessage(message);
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape, signature.name()));
  PENSTOCK_ASSIGN_OR_RETURN(header.byte_size, PayloadBytes(header.type, shape, signature.name()));
  PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::Allocate(std::move(header)));
  std::fill_n(tensor.mutable_bytes(), tensor.bytes().size(), '\0');
  if (signature.type() == v1::DATA_TYPE_FP32) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> draw(-1, 1);
    std::generate_n(reinterpret_cast<float*>(tensor.mutable_bytes()), elements, [&] { return draw(random); });
  }
  v1::Input input;
  input.set_name(signature.name());
  *input.mutable_tensor() = tensor.ToMessage();
  return input;
}

// All tensors of the file, or one made up for each signature.
absl::StatusOr<std::vector<v1::Input>> MakeInputs(const v1::Pipeline& pipeline,
                                                  const std::vector<v1::TensorSignature>& signatures,
                                                  const BenchInput& options, Session& session) {
  std::vector<v1::Input> inputs;
  if (!options.file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HostTensor> tensors, ReadTensorFile(options.file, session));
    for (const HostTensor& tensor : tensors) {
      v1::Input& input = inputs.emplace_back();
      input.set_name(tensor.name());
      *input.mutable_tensor() = tensor.ToMessage();
    }
    return inputs;
  }
  BenchInput with_sequence = options;
  if (options.sequence == 0) {
    const absl::StatusOr<ByteModel> bytes = AsByteModel(pipeline, 0);
    if (bytes.ok()) with_sequence.sequence = bytes->sequence;
  }
  for (const v1::TensorSignature& signature : signatures) {
    PENSTOCK_ASSIGN_OR_RETURN(inputs.emplace_back(), MakeUp(signature, with_sequence));
  }
  return inputs;
}

}  // namespace

absl::StatusOr<v1::InferRequest> MakeInferRequest(const v1::Pipeline& pipeline, const BenchInput& input,
                                                  Session& session) {
  const auto& signatures = pipeline.signature().inputs();
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<v1::Input> inputs,
                            MakeInputs(pipeline, {signatures.begin(), signatures.end()}, input, session));
  v1::InferRequest request;
  request.set_pipeline(pipeline.name());
  request.mutable_reply()->mutable_wait_for()->set_seconds(60);
  for (v1::Input& one : inputs) *request.add_inputs() = std::move(one);
  return request;
}

absl::StatusOr<v1::TrainStepRequest> MakeTrainRequest(const v1::Pipeline& pipeline, const BenchInput& input,
                                                      Session& session) {
  if (pipeline.signature().targets_size() != 1) {
    return UsageError("--train", "needs a pipeline with a loss and one target: create it with --loss");
  }
  const v1::TensorSignature& target = pipeline.signature().targets(0);
  std::vector<v1::TensorSignature> signatures(pipeline.signature().inputs().begin(),
                                              pipeline.signature().inputs().end());
  signatures.push_back(target);
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<v1::Input> inputs, MakeInputs(pipeline, signatures, input, session));
  v1::TrainStepRequest request;
  request.set_pipeline(pipeline.name());
  request.set_learning_rate(0);
  request.mutable_reply()->mutable_wait_for()->set_seconds(60);
  for (v1::Input& one : inputs) {
    (one.name() == target.name() ? *request.mutable_target() : *request.add_inputs()) = std::move(one);
  }
  if (!request.has_target()) return UsageError("--input", "must have a tensor called " + target.name());
  return request;
}

}  // namespace penstock
