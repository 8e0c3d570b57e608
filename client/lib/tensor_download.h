#pragma once

// Tensors from the server, in chunks.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/lib/call_runner.h"
#include "client/lib/host_tensor.h"
#include "penstock/v1/handle.pb.h"
#include "penstock/v1/handle_service.grpc.pb.h"
#include "penstock/v1/state.pb.h"
#include "penstock/v1/state_service.grpc.pb.h"

namespace penstock {

struct FetchOptions {
  std::string tensor;       // of a tensor or a value; empty: all of them
  int64_t chunk_bytes = 0;  // 0: 256 KiB
  absl::Duration wait_for;  // for a pending handle
  absl::Duration deadline = absl::Hours(1);
};

// What a fetch brought.
struct FetchedHandle {
  v1::Handle handle;
  std::vector<HostTensor> tensors;     // also those inside of values
  std::vector<v1::NamedValue> values;  // results that are no tensors
};

// Fetches a value handle. Each chunk's checksum is compared; after a break or a damaged chunk the fetch goes on at the
// offset that it had reached.
//
// Fails: what the server says: for a failed handle its own error, for a pending one DEADLINE_EXCEEDED / HANDLE_PENDING.
absl::StatusOr<FetchedHandle> DownloadHandle(CallRunner& runner, v1::HandleService::Stub& stub, const std::string& name,
                                             const FetchOptions& options);

// Parameters (and optimizer state) of one step.
struct ParameterDownload {
  int64_t step = 0;
  std::vector<HostTensor> tensors;
};

// Reads parameters. A snapshot lives as long as its stream, so a broken one starts again.
absl::StatusOr<ParameterDownload> DownloadParameters(CallRunner& runner, v1::StateService::Stub& stub,
                                                     const v1::ReadParametersRequest& request, absl::Duration deadline);

}  // namespace penstock
