#include "server/rpc/convert/inference_request.h"

#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"
#include "server/rpc/convert/message_entries.h"
#include "server/rpc/convert/message_limits.h"
#include "server/rpc/convert/tensor_slice.h"

namespace penstock {
namespace {

using inference::InferParameter;
using inference::InferTensorContents;
using inference::ModelInferRequest;
using InputTensor = ModelInferRequest::InferInputTensor;

constexpr int kMaxEntries = 64;
constexpr int kMaxFields = 1024;
constexpr uint32_t kRawField = ModelInferRequest::kRawInputContentsFieldNumber;
constexpr uint32_t kRawAnswerField = inference::ModelInferResponse::kRawOutputContentsFieldNumber;

absl::Status TooMany(const char* field, int64_t count) {
  return InvalidField(field, absl::StrCat("must have at most ", kMaxEntries, " entries"), absl::StrCat(count));
}

absl::Status TooManyBytes(size_t size) {
  return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
               absl::StrCat("inputs: must have at most ", kWorkMessageBytes,
                            " bytes beside raw_input_contents; send large tensors raw, got ", size))
      .With("field", "inputs")
      .With("value", absl::StrCat(size));
}

absl::Status BadHeader(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_HEADER", field + ": " + problem + ", got " + value)
      .With("field", field)
      .With("value", value);
}

// A whole number of any kind; clients differ in which they send.
std::optional<int64_t> WholeNumber(const InferParameter& parameter) {
  if (parameter.has_int64_param()) return parameter.int64_param();
  if (parameter.has_uint64_param() && parameter.uint64_param() < uint64_t{1} << 63) {
    return static_cast<int64_t>(parameter.uint64_param());
  }
  return std::nullopt;
}

using ParameterMap = google::protobuf::Map<std::string, InferParameter>;

absl::Status RefuseSharedMemory(const ParameterMap& parameters, const std::string& field) {
  if (parameters.size() > kMaxEntries) return TooMany(field.c_str(), parameters.size());
  for (const auto& [key, value] : parameters) {
    if (!absl::StartsWith(key, "shared_memory_")) continue;
    return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
                 field + ": shared memory is not supported, got " + Shortened(key))
        .With("field", field)
        .With("value", Shortened(key));
  }
  return absl::OkStatus();
}

// Copies numbers of one kind into a new tensor of another, and checks that each fits. There are as many as the shape
// says before the tensor is made.
template <typename To, typename From>
absl::StatusOr<at::Tensor> CopyNumbers(const google::protobuf::RepeatedField<From>& numbers, const std::string& field,
                                       const TensorHeader& header) {
  const int64_t elements = header.byte_size / static_cast<int64_t>(sizeof(To));
  if (numbers.size() != elements) {
    return BadHeader(field + ".contents", absl::StrCat("must have ", elements, " elements of the datatype's kind"),
                     absl::StrCat(numbers.size()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const at::Tensor tensor, AllocateTensor(header));
  To* to = reinterpret_cast<To*>(MutableBytesOf(tensor));
  for (const From number : numbers) {
    *to = static_cast<To>(number);
    if constexpr (std::is_integral_v<From> && sizeof(To) < sizeof(From)) {
      if (static_cast<From>(*to) != number) {
        return BadHeader(field + ".contents", "must fit the datatype", absl::StrCat(number));
      }
    }
    ++to;
  }
  return tensor;
}

absl::StatusOr<at::Tensor> CopyContents(const InferTensorContents& contents, const TensorHeader& header,
                                        const std::string& field) {
  switch (header.type) {
    case DataType::kBool:
      return CopyNumbers<bool>(contents.bool_contents(), field, header);
    case DataType::kInt8:
      return CopyNumbers<int8_t>(contents.int_contents(), field, header);
    case DataType::kInt16:
      return CopyNumbers<int16_t>(contents.int_contents(), field, header);
    case DataType::kInt32:
      return CopyNumbers<int32_t>(contents.int_contents(), field, header);
    case DataType::kInt64:
      return CopyNumbers<int64_t>(contents.int64_contents(), field, header);
    case DataType::kUint8:
      return CopyNumbers<uint8_t>(contents.uint_contents(), field, header);
    case DataType::kUint16:
      return CopyNumbers<uint16_t>(contents.uint_contents(), field, header);
    case DataType::kUint32:
      return CopyNumbers<uint32_t>(contents.uint_contents(), field, header);
    case DataType::kUint64:
      return CopyNumbers<uint64_t>(contents.uint64_contents(), field, header);
    case DataType::kFp32:
      return CopyNumbers<float>(contents.fp32_contents(), field, header);
    case DataType::kFp64:
      return CopyNumbers<double>(contents.fp64_contents(), field, header);
    default:
      return BadHeader(field + ".contents", "must travel raw", std::string(DataTypeName(header.type)));
  }
}

absl::StatusOr<TensorHeader> HeaderOfInput(const InputTensor& input, const std::string& field) {
  const std::optional<DataType> type = DataTypeFromName(input.datatype());
  if (!type.has_value()) {
    return BadHeader(field + ".datatype", "must be a numeric type", Shortened(input.datatype()));
  }
  TensorHeader header{.name = input.name(), .type = *type, .shape = {input.shape().begin(), input.shape().end()}};
  if (header.shape.size() > 8) {
    return BadHeader(field + ".shape", "must have at most 8 dimensions", absl::StrCat(header.shape.size()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(header.byte_size, PayloadBytes(header.type, header.shape, field));
  return header;
}

}  // namespace

absl::StatusOr<SplitInferRequest> SplitRequest(const Pieces& bytes) {
  SplitInferRequest split;
  std::string rest;
  WireReader reader(bytes);
  for (int fields = 0; !reader.AtEnd(); ++fields) {
    PENSTOCK_ASSIGN_OR_RETURN(WireField field, reader.Next());
    if (fields == kMaxFields || field.number > kRawField || field.type != 2) {
      return InvalidField("message", "must hold the fields of ModelInfer only", absl::StrCat("field ", field.number));
    }
    if (field.number != kRawField) {
      const size_t size = rest.size() + PiecesSize(field.bytes);
      if (size > kWorkMessageBytes) return TooManyBytes(size);
      AppendField(field, &rest);
    } else if (split.raw_contents.size() == kMaxEntries) {
      return TooMany("raw_input_contents", kMaxEntries + 1);
    } else {
      split.raw_contents.push_back(std::move(field.bytes));
    }
  }
  PENSTOCK_RETURN_IF_ERROR(CheckMessageEntries({rest}, ModelInferRequest::descriptor()));
  if (!split.message.ParseFromString(rest)) {
    return InvalidField("message", "must be a ModelInferRequest", absl::StrCat(rest.size(), " bytes"));
  }
  const ModelInferRequest& message = split.message;
  if (message.inputs_size() > kMaxEntries) return TooMany("inputs", message.inputs_size());
  if (message.outputs_size() > kMaxEntries) return TooMany("outputs", message.outputs_size());
  if (message.id().size() > 256) {
    return InvalidField("id", "must have at most 256 bytes", absl::StrCat(message.id().size(), " bytes"));
  }
  return split;
}

absl::StatusOr<InferenceParameters> ReadParameters(const ModelInferRequest& request) {
  InferenceParameters read;
  PENSTOCK_RETURN_IF_ERROR(RefuseSharedMemory(request.parameters(), "parameters"));
  for (const auto& [key, value] : request.parameters()) {
    const std::string field = "parameters[" + Shortened(key) + "]";
    if (key == "timeout") {
      const std::optional<int64_t> micros = WholeNumber(value);
      if (!micros.has_value() || *micros < 0 || *micros > int64_t{86'400} * 1'000'000) {
        return InvalidField(field, "must be whole microseconds, at most a day", value.ShortDebugString());
      }
      read.timeout = absl::Microseconds(*micros);
    } else if (key == "priority") {
      const std::optional<int64_t> level = WholeNumber(value);
      if (!level.has_value() || *level < 0) {
        return InvalidField(field, "must be a whole number, 0 or more", value.ShortDebugString());
      }
      if (*level > 0 && *level <= kPriorityLevels) read.priority = static_cast<int32_t>(kPriorityLevels + 1 - *level);
    } else if (absl::StartsWith(key, "sequence_") || key == "headers" || absl::StartsWith(key, "triton_")) {
      return InvalidField(field, "is reserved and not supported", value.ShortDebugString());
    }
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        RefuseSharedMemory(request.inputs(i).parameters(), absl::StrCat("inputs[", i, "].parameters")));
  }
  for (int i = 0; i < request.outputs_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        RefuseSharedMemory(request.outputs(i).parameters(), absl::StrCat("outputs[", i, "].parameters")));
  }
  return read;
}

absl::StatusOr<std::vector<InputSource>> DecodeInputs(const SplitInferRequest& request) {
  const ModelInferRequest& message = request.message;
  const bool raw = !request.raw_contents.empty();
  for (int i = 0; raw && i < message.inputs_size(); ++i) {
    if (!message.inputs(i).has_contents()) continue;
    // Clients of other servers look for these words.
    return InvalidField(
        absl::StrCat("inputs[", i, "].contents"),
        absl::StrCat("contents field must not be specified when using raw_input_contents for '",
                     Shortened(message.inputs(i).name()), "' for model '", Shortened(message.model_name()), "'"),
        "both");
  }
  if (raw && static_cast<int>(request.raw_contents.size()) != message.inputs_size()) {
    return InvalidField("raw_input_contents",
                        absl::StrCat("must have ", message.inputs_size(), " entries, one per input"),
                        absl::StrCat(request.raw_contents.size()));
  }
  std::vector<TensorHeader> headers;
  for (int i = 0; i < message.inputs_size(); ++i) {
    const std::string field = absl::StrCat("inputs[", i, "]");
    PENSTOCK_ASSIGN_OR_RETURN(TensorHeader header, HeaderOfInput(message.inputs(i), field));
    headers.push_back(std::move(header));
  }
  PENSTOCK_RETURN_IF_ERROR(ValidateTensorHeaders(headers, "inputs"));
  std::vector<InputSource> inputs;
  for (int i = 0; i < message.inputs_size(); ++i) {
    const std::string field = absl::StrCat("inputs[", i, "]");
    at::Tensor tensor;
    if (raw) {
      PENSTOCK_ASSIGN_OR_RETURN(tensor, DecodeTensor(headers[i], request.raw_contents[i], field));
    } else {
      PENSTOCK_ASSIGN_OR_RETURN(tensor, CopyContents(message.inputs(i).contents(), headers[i], field));
    }
    inputs.push_back({headers[i].name, std::move(tensor)});
  }
  return inputs;
}

absl::StatusOr<grpc::ByteBuffer> EncodeAnswer(const ModelInferRequest& request, const NamedTensors& outputs) {
  inference::ModelInferResponse answer;
  answer.set_model_name(request.model_name());
  answer.set_model_version(request.model_version().empty() ? "1" : request.model_version());
  answer.set_id(request.id());
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& output : outputs) {
    PENSTOCK_ASSIGN_OR_RETURN(at::Tensor tensor, SendableTensor(output.tensor));
    PENSTOCK_ASSIGN_OR_RETURN(const TensorHeader header, HeaderOf(output.name, tensor));
    auto* described = answer.add_outputs();
    described->set_name(header.name);
    described->set_datatype(std::string(DataTypeName(header.type)));
    for (int64_t dimension : header.shape) described->add_shape(dimension);
    tensors.push_back(std::move(tensor));
  }
  std::vector<grpc::Slice> slices;
  std::string pending = answer.SerializeAsString();
  for (const at::Tensor& tensor : tensors) {
    const std::string_view bytes = BytesOf(tensor);
    pending += BytesFieldPrefix(kRawAnswerField, bytes.size());
    slices.emplace_back(pending);
    pending.clear();
    if (!bytes.empty()) slices.push_back(ShareBytes(tensor, bytes));
  }
  if (!pending.empty()) slices.emplace_back(pending);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace penstock
