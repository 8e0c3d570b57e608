#pragma once

// Moves the tensors of a work request that is too large for one message to handles.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/lib/host_tensor.h"
#include "penstock/v1/tensor.pb.h"
#include "penstock/v1/work.pb.h"

namespace penstock {

inline constexpr size_t kMaxUnaryBytes = size_t{4} << 20;  // of a unary work request

// Every input of a request that may hold a tensor.
std::vector<v1::Input*> InputsOf(v1::InferRequest& request);
std::vector<v1::Input*> InputsOf(v1::EvaluateRequest& request);
std::vector<v1::Input*> InputsOf(v1::ForwardRequest& request);
std::vector<v1::Input*> InputsOf(v1::BackwardRequest& request);
std::vector<v1::Input*> InputsOf(v1::ForwardBackwardRequest& request);
std::vector<v1::Input*> InputsOf(v1::OptimizerStepRequest& request);
std::vector<v1::Input*> InputsOf(v1::TrainStepRequest& request);

// Uploads all inline tensors of `inputs`, also those inside of values, by `put`, as many together as one takes, and refers to
// the handles instead. `handles` gets the names that `put` returns, also where a later one fails.
absl::Status MoveToHandles(std::span<v1::Input* const> inputs,
                           const std::function<absl::StatusOr<std::string>(std::span<const HostTensor>)>& put,
                           std::vector<std::string>* handles);

}  // namespace penstock
