// Feeds foreign bytes to the reader of ModelInfer: its split, its parameters, its tensors. Nothing may crash, leak or
// take more memory than the request has bytes to speak of.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/device/torch_status.h"
#include "server/rpc/convert/inference_request.h"
#include "tests/fuzz/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::testing::DemandReason;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto split = penstock::SplitRequest({bytes});
  DemandReason(split.status());
  if (!split.ok()) return 0;
  DemandReason(penstock::ReadParameters(split->message).status());
  DemandReason(penstock::DecodeInputs(*split).status());
  return 0;
}
