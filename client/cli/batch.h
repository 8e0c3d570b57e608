#pragma once

// A mini-batch that a command sends.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/lib/host_tensor.h"

namespace penstock {

struct Batch {
  std::vector<HostTensor> inputs;    // each with the name of the model's input
  std::optional<HostTensor> target;  // unset: the model computes its loss by itself
  std::string loss;                  // empty: the pipeline's
};

// The mini-batch of a number from 0 on: the same one in every run.
using BatchSource = std::function<absl::StatusOr<Batch>(int64_t number)>;

// Puts a mini-batch into a request of training or of evaluation.
template <typename Request>
void SetBatch(const Batch& batch, Request* request) {
  const auto set = [](const HostTensor& tensor, v1::Input* input) {
    input->set_name(tensor.name());
    *input->mutable_tensor() = tensor.ToMessage();
  };
  for (const HostTensor& tensor : batch.inputs) set(tensor, request->add_inputs());
  if (batch.target.has_value()) set(*batch.target, request->mutable_target());
  if (!batch.loss.empty()) request->mutable_loss()->set_name(batch.loss);
}

}  // namespace penstock
