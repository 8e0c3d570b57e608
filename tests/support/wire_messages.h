#pragma once

// Engine values as messages of the wire, for tests and benchmarks that talk to a daemon.

#include <ATen/core/Tensor.h>

#include <string>

#include "engine/exec/pipeline_spec.h"
#include "penstock/v1/pipeline.pb.h"
#include "penstock/v1/tensor.pb.h"

namespace penstock::testing {

v1::PipelineSpec ToMessage(const PipelineSpec& spec);

// An inline input; float32 or int64.
v1::Input ToMessage(const std::string& name, const at::Tensor& tensor);

}  // namespace penstock::testing
