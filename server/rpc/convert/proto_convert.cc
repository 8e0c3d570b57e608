#include "server/rpc/convert/proto_convert.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/convert/value_convert.h"

namespace penstock {
namespace {

constexpr int kMaxTensors = 64;

absl::Status TooManyTensors(std::string_view field, int count) {
  return InvalidField(field, absl::StrCat("must have at most ", kMaxTensors, " entries"), absl::StrCat(count));
}

v1::HandleKind ToProto(HandleKind kind) {
  switch (kind) {
    case HandleKind::kValue:
      return v1::HANDLE_KIND_VALUE;
    case HandleKind::kGraph:
      return v1::HANDLE_KIND_GRAPH;
    case HandleKind::kOutcome:
      return v1::HANDLE_KIND_OUTCOME;
  }
  return v1::HANDLE_KIND_UNSPECIFIED;
}

v1::HandleState ToProto(HandleState state) {
  switch (state) {
    case HandleState::kPending:
      return v1::HANDLE_STATE_PENDING;
    case HandleState::kReady:
      return v1::HANDLE_STATE_READY;
    case HandleState::kFailed:
      return v1::HANDLE_STATE_FAILED;
    case HandleState::kCancelled:
      return v1::HANDLE_STATE_CANCELLED;
    case HandleState::kReleased:
      return v1::HANDLE_STATE_RELEASED;
    case HandleState::kExpired:
      return v1::HANDLE_STATE_EXPIRED;
  }
  return v1::HANDLE_STATE_UNSPECIFIED;
}

v1::PipelineState ToProto(PipelineEntry::State state) {
  switch (state) {
    case PipelineEntry::State::kCreating:
      return v1::PIPELINE_STATE_CREATING;
    case PipelineEntry::State::kReady:
      return v1::PIPELINE_STATE_READY;
    case PipelineEntry::State::kDraining:
      return v1::PIPELINE_STATE_DRAINING;
    case PipelineEntry::State::kDeleting:
      return v1::PIPELINE_STATE_DELETING;
    case PipelineEntry::State::kFailed:
      return v1::PIPELINE_STATE_FAILED;
    case PipelineEntry::State::kReforming:
      return v1::PIPELINE_STATE_REFORMING;
    case PipelineEntry::State::kUnloading:
      return v1::PIPELINE_STATE_UNLOADING;
    case PipelineEntry::State::kUnloaded:
      return v1::PIPELINE_STATE_UNLOADED;
  }
  return v1::PIPELINE_STATE_UNSPECIFIED;
}

v1::CreateProgress ToProto(const PlanProgress& progress) {
  v1::CreateProgress message;
  message.set_phase(std::string(PlanPhaseName(progress.phase)));
  message.set_done(progress.done);
  message.set_elapsed_seconds(progress.elapsed_seconds);
  message.set_budget_seconds(progress.budget_seconds);
  return message;
}

}  // namespace

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  google::protobuf::Timestamp stamp;
  const int64_t nanos = absl::ToUnixNanos(time);
  stamp.set_seconds(nanos / 1'000'000'000);
  stamp.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return stamp;
}

TensorHeader FromProto(const v1::TensorHeader& header) {
  return {.name = header.name(),
          .type = static_cast<DataType>(header.type()),
          .shape = {header.shape().begin(), header.shape().end()},
          .byte_size = header.byte_size()};
}

absl::StatusOr<InputSource> FromProto(const v1::Input& input, std::string_view field) {
  const std::string prefix(field);
  InputSource source;
  source.name = input.name();
  source.whole = input.whole();
  switch (input.source_case()) {
    case v1::Input::kTensor: {
      WireLimits limits;
      limits.allow_empty_name = true;
      PENSTOCK_ASSIGN_OR_RETURN(source.source, DecodeTensor(FromProto(input.tensor().header()), {input.tensor().data()},
                                                            prefix + ".tensor", limits));
      return source;
    }
    case v1::Input::kHandle: {
      PENSTOCK_ASSIGN_OR_RETURN(source.source, FromProto(input.handle(), prefix + ".handle"));
      return source;
    }
    case v1::Input::kValue: {
      if (input.whole()) {
        const std::string value = ValueText(input.value());
        return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                     prefix + ".whole: NoChunk only supported for tensors, found: " + value)
            .With("field", prefix + ".whole")
            .With("value", value);
      }
      PENSTOCK_ASSIGN_OR_RETURN(source.source, FromProto(input.value(), prefix + ".value", &source.inside));
      return source;
    }
    case v1::Input::SOURCE_NOT_SET:
      break;
  }
  return InvalidField(prefix, "must hold a tensor, a handle or a value", "nothing");
}

absl::StatusOr<std::vector<InputSource>> FromProto(const google::protobuf::RepeatedPtrField<v1::Input>& inputs,
                                                   std::string_view field) {
  if (inputs.size() > kMaxTensors) return TooManyTensors(field, inputs.size());
  std::set<std::string> names;
  for (int i = 0; i < inputs.size(); ++i) {
    if (names.insert(inputs[i].name()).second) continue;
    return InvalidField(absl::StrCat(absl::string_view(field.data(), field.size()), "[", i, "].name"),
                        "must not repeat", Shortened(inputs[i].name()));
  }
  std::vector<InputSource> sources;
  for (int i = 0; i < inputs.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(
        InputSource source,
        FromProto(inputs[i], absl::StrCat(absl::string_view(field.data(), field.size()), "[", i, "]")));
    sources.push_back(std::move(source));
  }
  return sources;
}

absl::StatusOr<std::vector<std::string>> CheckedOutputs(
    const google::protobuf::RepeatedPtrField<std::string>& outputs) {
  if (outputs.size() > kMaxTensors) return TooManyTensors("outputs", outputs.size());
  std::set<std::string> names;
  for (int i = 0; i < outputs.size(); ++i) {
    if (names.insert(outputs[i]).second) continue;
    return InvalidField(absl::StrCat("outputs[", i, "]"), "must not repeat", Shortened(outputs[i]));
  }
  return std::vector<std::string>(outputs.begin(), outputs.end());
}

v1::TensorHeader ToProto(const TensorHeader& header) {
  v1::TensorHeader message;
  message.set_name(header.name);
  message.set_type(static_cast<v1::DataType>(header.type));
  for (int64_t dimension : header.shape) message.add_shape(dimension);
  message.set_byte_size(header.byte_size);
  return message;
}

v1::Outcome ToProto(const CallOutcome& outcome) {
  v1::Outcome message;
  message.set_step(outcome.run.step);
  message.set_sequence(outcome.sequence);
  message.set_state_token(outcome.state_token);
  if (outcome.run.loss.has_value()) message.set_loss(*outcome.run.loss);
  if (outcome.run.gradient_norm.has_value()) message.set_gradient_norm(*outcome.run.gradient_norm);
  if (outcome.run.applied.has_value()) message.set_applied(*outcome.run.applied);
  if (outcome.run.learning_rate.has_value()) message.set_learning_rate(*outcome.run.learning_rate);
  message.set_rows(outcome.run.rows);
  message.set_micro_batches(outcome.run.micro_batches);
  message.set_seconds(outcome.run.seconds);
  const bool in_step = outcome.sequence != 0;  // an evaluation has no bubble
  if (in_step) message.set_measured_bubble(outcome.run.measured_bubble);
  if (outcome.run.counted.has_value()) message.set_counted_elements(*outcome.run.counted);
  message.set_metric_elements(outcome.run.metric_elements);
  message.mutable_metrics()->insert(outcome.run.metrics.begin(), outcome.run.metrics.end());
  return message;
}

v1::Handle ToProto(const HandleInfo& info) {
  v1::Handle message;
  message.set_name(ToString(info.name));
  message.set_kind(ToProto(info.kind));
  message.set_state(ToProto(info.state));
  for (const TensorHeader& tensor : info.tensors) *message.add_tensors() = ToProto(tensor);
  if (info.outcome.has_value()) *message.mutable_outcome() = ToProto(*info.outcome);
  if (!info.error.ok()) *message.mutable_error() = ToRpcStatus(info.error);
  message.set_byte_size(info.bytes);
  *message.mutable_create_time() = ToTimestamp(info.create_time);
  if (info.expire_time.has_value()) *message.mutable_expire_time() = ToTimestamp(*info.expire_time);
  message.set_method(info.method);
  message.mutable_values()->Add(info.values.begin(), info.values.end());
  return message;
}

v1::HandleAnswer ToProto(const HandleName& name, const absl::StatusOr<HandleInfo>& answer) {
  v1::HandleAnswer message;
  message.set_name(ToString(name));
  if (answer.ok()) {
    *message.mutable_handle() = ToProto(*answer);
  } else {
    *message.mutable_error() = ToRpcStatus(answer.status());
  }
  return message;
}

v1::HandleAnswer ToProto(const RenewedHandle& renewed) {
  v1::HandleAnswer message;
  message.set_name(ToString(renewed.name));
  v1::Handle* handle = message.mutable_handle();
  handle->set_name(message.name());
  handle->set_state(ToProto(renewed.state));
  if (renewed.expire_time.has_value()) *handle->mutable_expire_time() = ToTimestamp(*renewed.expire_time);
  return message;
}

std::string EtagOf(const PipelineEntry& entry, Epoch epoch) { return absl::StrCat(epoch.value(), "-", entry.version); }

namespace {

v1::PublishedCheckpoint ToProto(const Publication& publication, const std::string& pipeline) {
  v1::PublishedCheckpoint message;
  message.set_checkpoint(absl::StrCat("pipelines/", pipeline, "/checkpoints/", publication.checkpoint));
  message.set_step(publication.step);
  message.set_version(absl::StrCat(publication.version));
  *message.mutable_publish_time() = ToTimestamp(publication.time);
  if (!publication.error.ok()) *message.mutable_error() = ToRpcStatus(publication.error);
  return message;
}

}  // namespace

v1::Pipeline ToProto(const PipelineEntry& entry, Epoch epoch) {
  v1::Pipeline message;
  message.set_name("pipelines/" + entry.name);
  *message.mutable_spec() = ToProto(entry.spec);
  message.set_state(ToProto(entry.state));
  message.set_epoch(epoch.value());
  *message.mutable_create_time() = ToTimestamp(entry.create_time);
  message.set_etag(EtagOf(entry, epoch));
  if (!entry.error.ok()) *message.mutable_error() = ToRpcStatus(entry.error);
  if (entry.planning != nullptr) *message.mutable_progress() = ToProto(entry.planning->progress());
  const auto publish = [&](const Publication& publication) {
    if (publication.any()) *message.mutable_published() = ToProto(publication, entry.name);
  };
  if (entry.pipeline == nullptr) {
    message.set_step(entry.rest.step);
    message.set_state_token(entry.rest.state_token);
    publish(entry.rest.published);
    return message;
  }
  const ServedPipeline::Statistics statistics = entry.pipeline->statistics();
  message.set_step(statistics.step);
  message.set_state_token(statistics.state_token);
  const Pipeline& pipeline = entry.pipeline->pipeline();
  *message.mutable_plan() = ToProto(pipeline.plan());
  *message.mutable_signature() = ToProto(pipeline.signature());
  message.set_parameters(pipeline.parameter_count());
  publish(entry.pipeline->publication());
  return message;
}

}  // namespace penstock
