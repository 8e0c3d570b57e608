#pragma once

// Between the messages of penstock.v1 and the values of the engine. No decisions: sizes and forms are
// checked here, meaning is checked by the engine.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/handles/handle_store.h"
#include "engine/model/model_spec.h"
#include "engine/plan/plan.h"
#include "engine/serve/calls.h"
#include "engine/serve/pipeline_table.h"
#include "penstock/v1/handle.pb.h"
#include "penstock/v1/pipeline.pb.h"
#include "penstock/v1/tensor.pb.h"
#include "penstock/v1/work.pb.h"

namespace penstock {

// Inwards. Fails: SPEC_INVALID, TENSOR_HEADER, TENSOR_TOO_LARGE, NAME_INVALID or FIELD_INVALID, naming
// field and value; `field` is where the message stands in the request.

absl::StatusOr<PipelineSpec> FromProto(const v1::PipelineSpec& spec);
// With the limits of the search; those are the planner's to judge.
absl::StatusOr<PipelineSpec> FromProto(const v1::PlanPipelineRequest& request);
// At most 4,096 layers over all depths, at most 16 deep.
absl::StatusOr<ModelSpec> FromProto(const v1::ModelSpec& model, const std::string& field);
absl::StatusOr<LossSpec> FromProto(const v1::LossSpec& loss, std::string_view field);
absl::StatusOr<OptimizerSpec> FromProto(const v1::OptimizerSpec& optimizer);
TensorHeader FromProto(const v1::TensorHeader& header);
// Also WRONG_TYPE for a value that shall be whole.
absl::StatusOr<InputSource> FromProto(const v1::Input& input, std::string_view field);
// Names, count and the sum of bytes are checked before any tensor is made.
absl::StatusOr<std::vector<InputSource>> FromProto(const google::protobuf::RepeatedPtrField<v1::Input>& inputs,
                                                   std::string_view field);
// Wanted outputs: at most 64, each once.
absl::StatusOr<std::vector<std::string>> CheckedOutputs(const google::protobuf::RepeatedPtrField<std::string>& outputs);

// Outwards.

v1::PipelineSpec ToProto(const PipelineSpec& spec);
v1::LossSpec ToProto(const LossSpec& loss);
v1::OptimizerSpec ToProto(const OptimizerSpec& spec);
v1::ModelSpec ToProto(const ModelSpec& spec);
v1::CheckpointMode ToProto(CheckpointMode mode);
v1::ScheduleSpec ToProto(const ScheduleSpec& schedule);
v1::Plan ToProto(const Plan& plan);
v1::PlanPipelineResponse ToProto(const PlanSearch& search);
v1::ModelSignature ToProto(const ModelSignature& signature);
v1::TensorHeader ToProto(const TensorHeader& header);
v1::Outcome ToProto(const CallOutcome& outcome);
v1::Handle ToProto(const HandleInfo& info);
v1::Pipeline ToProto(const PipelineEntry& entry, Epoch epoch);
// What another state or specification of it has otherwise.
std::string EtagOf(const PipelineEntry& entry, Epoch epoch);
v1::HandleAnswer ToProto(const HandleName& name, const absl::StatusOr<HandleInfo>& answer);
v1::HandleAnswer ToProto(const RenewedHandle& renewed);  // name, state and expiry only
google::protobuf::Timestamp ToTimestamp(absl::Time time);

}  // namespace penstock
