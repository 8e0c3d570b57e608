#pragma once

// Exported programs to the server, in chunks.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/lib/call_runner.h"
#include "penstock/v1/model.pb.h"
#include "penstock/v1/model_service.grpc.pb.h"

namespace penstock {

struct ModelUploadOptions {
  int64_t chunk_bytes = 0;                           // 0: 256 KiB; else 64 KiB to 1 MiB
  std::function<void(int64_t sent_bytes)> on_chunk;  // on the caller's thread
  absl::Duration deadline = absl::Hours(4);
};

// Puts a file into the model root and returns what the server found in it. Sends only what the server gave credit for;
// after a break or a damaged chunk it goes on at the offset that the server names.
//
// Fails: INVALID_ARGUMENT / CHUNK_SIZE for a bad chunk size; INTERNAL / BUG if the server breaks the protocol; else
//        what the server says.
absl::StatusOr<v1::Model> UploadModel(CallRunner& runner, v1::ModelService::Stub& stub, const std::string& id,
                                      std::string_view file, const ModelUploadOptions& options);

}  // namespace penstock
