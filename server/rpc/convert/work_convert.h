#pragma once

// The requests of WorkService as the engine's calls. Sizes and forms are checked here, meaning is checked by the engine.

#include "absl/status/statusor.h"
#include "engine/serve/calls.h"
#include "penstock/v1/work.pb.h"

namespace penstock {

// Fails: FIELD_INVALID, NAME_INVALID and those of proto_convert, naming field and value.
absl::StatusOr<InferCall> CallOf(const v1::InferRequest& request);
absl::StatusOr<EvaluateCall> CallOf(const v1::EvaluateRequest& request);
absl::StatusOr<ForwardCall> CallOf(const v1::ForwardRequest& request);
absl::StatusOr<BackwardCall> CallOf(const v1::BackwardRequest& request);
absl::StatusOr<ContributionCall> CallOf(const v1::ForwardBackwardRequest& request);
absl::StatusOr<StepCall> CallOf(const v1::OptimizerStepRequest& request);
absl::StatusOr<TrainStepCall> CallOf(const v1::TrainStepRequest& request);

// The same of a request without its values, handles and names of handles.
absl::StatusOr<BackwardCall> SettingsOf(const v1::BackwardRequest& request);

}  // namespace penstock
