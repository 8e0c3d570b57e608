#pragma once

// Tensors to the server, in chunks.

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/lib/call_runner.h"
#include "client/lib/host_tensor.h"
#include "penstock/v1/handle.pb.h"
#include "penstock/v1/handle_service.grpc.pb.h"

namespace penstock {

struct UploadOptions {
  std::string request_id;   // empty: a new one; it lets a broken upload go on where it was
  absl::Duration lease;     // 0: the server's default
  int64_t chunk_bytes = 0;  // 0: 256 KiB; else 64 KiB to 1 MiB
  absl::Duration deadline = absl::Hours(1);
};

// Uploads tensors and returns the value handle that holds them. Sends only what the server gave credit for; after a
// break or a damaged chunk it goes on at the offset that the server names.
//
// Fails: INVALID_ARGUMENT / CHUNK_SIZE for a bad chunk size; INTERNAL / BUG if the server breaks the protocol; else
//        what the server says.
absl::StatusOr<v1::Handle> UploadTensors(CallRunner& runner, v1::HandleService::Stub& stub, const std::string& pipeline,
                                         std::span<const HostTensor> tensors, const UploadOptions& options);

}  // namespace penstock
