#pragma once

#include "absl/status/statusor.h"
#include "client/lib/host_tensor.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

// The tensor in the type that a model takes, where nothing is lost that the giver would miss, as the Python client does
// it: float64, which NumPy makes of any number, is rounded to float32, and integers go to any integer type that has
// all of their values. Anything else stays as it is, for the daemon to refuse by name.
//
// Fails:     a usage error that names the tensor, and the first value that the type has not.
absl::StatusOr<HostTensor> CastTo(DataType wanted, HostTensor tensor);

}  // namespace penstock
