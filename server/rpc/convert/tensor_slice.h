#pragma once

#include <string_view>

#include "ATen/core/TensorBody.h"
#include "grpcpp/support/slice.h"

namespace penstock {

// A slice that shares the tensor's bytes and keeps them alive until gRPC has sent them; short ones are
// copied.
grpc::Slice ShareBytes(const at::Tensor& tensor, std::string_view bytes);

}  // namespace penstock
