#include "client/cli/bench_calls.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/byte_model.h"
#include "client/cli/exit_code.h"
#include "client/cli/tensor_file.h"
#include "client/lib/durations.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(60);  // that the daemon takes

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
absl::StatusOr<std::vector<v1::Input>> MakeInputs(const std::vector<v1::TensorSignature>& signatures,
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
  for (const v1::TensorSignature& signature : signatures) {
    PENSTOCK_ASSIGN_OR_RETURN(inputs.emplace_back(), MakeUp(signature, options));
  }
  return inputs;
}

// With the length of rows that the pipeline's model has, where it has one.
BenchInput WithSequence(BenchInput input, const v1::Pipeline& pipeline) {
  if (input.sequence > 0) return input;
  const absl::StatusOr<ByteModel> bytes = AsByteModel(pipeline, 0);
  if (bytes.ok()) input.sequence = bytes->sequence;
  return input;
}

absl::StatusOr<v1::TensorSignature> SignatureOf(const inference::ModelMetadataResponse::TensorMetadata& tensor) {
  v1::TensorSignature signature;
  signature.set_name(tensor.name());
  v1::DataType type = v1::DATA_TYPE_UNSPECIFIED;
  if (!v1::DataType_Parse("DATA_TYPE_" + tensor.datatype(), &type) || type == v1::DATA_TYPE_UNSPECIFIED) {
    return UsageError("PIPELINE", absl::StrCat("has an input that can't be made, ", tensor.name(), ": its type is ",
                                               tensor.datatype()));
  }
  signature.set_type(type);
  for (const int64_t size : tensor.shape()) signature.add_shape(size);
  return signature;
}

}  // namespace

absl::Duration PatienceOf(const Session& session) { return absl::Seconds(session.options().timeout_seconds); }

absl::StatusOr<v1::InferRequest> MakeInferRequest(const v1::Pipeline& pipeline, const BenchInput& input,
                                                  Session& session) {
  const auto& signatures = pipeline.signature().inputs();
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<v1::Input> inputs,
                            MakeInputs({signatures.begin(), signatures.end()}, WithSequence(input, pipeline), session));
  v1::InferRequest request;
  request.set_pipeline(pipeline.name());
  *request.mutable_reply()->mutable_wait_for() = ToMessage(std::min(PatienceOf(session), kLongestWait));
  for (v1::Input& one : inputs) *request.add_inputs() = std::move(one);
  return request;
}

absl::StatusOr<inference::ModelInferRequest> MakeModelRequest(const inference::ModelMetadataResponse& model,
                                                              const BenchInput& input, Session& session) {
  std::vector<v1::TensorSignature> signatures;
  for (const auto& tensor : model.inputs()) {
    PENSTOCK_ASSIGN_OR_RETURN(signatures.emplace_back(), SignatureOf(tensor));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<v1::Input> inputs, MakeInputs(signatures, input, session));
  inference::ModelInferRequest request;
  request.set_model_name(model.name());
  for (v1::Input& one : inputs) {
    const v1::TensorHeader& header = one.tensor().header();
    inference::ModelInferRequest::InferInputTensor& tensor = *request.add_inputs();
    tensor.set_name(one.name());
    tensor.set_datatype(v1::DataType_Name(header.type()).substr(std::string_view("DATA_TYPE_").size()));
    *tensor.mutable_shape() = header.shape();
    request.add_raw_input_contents(std::move(*one.mutable_tensor()->mutable_data()));
  }
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
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<v1::Input> inputs,
                            MakeInputs(signatures, WithSequence(input, pipeline), session));
  v1::TrainStepRequest request;
  request.set_pipeline(pipeline.name());
  request.set_learning_rate(0);
  *request.mutable_reply()->mutable_wait_for() = ToMessage(std::min(PatienceOf(session), kLongestWait));
  for (v1::Input& one : inputs) {
    (one.name() == target.name() ? *request.mutable_target() : *request.add_inputs()) = std::move(one);
  }
  if (!request.has_target()) return UsageError("--input", "must have a tensor called " + target.name());
  return request;
}

}  // namespace penstock
