// Feeds foreign headers to the checks that come before any allocation. What they let pass must keep every limit.

#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/wire/tensor_header.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using penstock::testing::Demand;
using penstock::testing::DemandReason;

penstock::TensorHeader Header(FuzzedDataProvider& input) {
  penstock::TensorHeader header;
  header.name = input.ConsumeRandomLengthString(140);
  header.type = static_cast<penstock::DataType>(input.ConsumeIntegralInRange<int32_t>(-1, penstock::kDataTypeCount));
  const int rank = input.ConsumeIntegralInRange(0, 9);
  for (int i = 0; i < rank; ++i) {
    header.shape.push_back(input.ConsumeBool() ? input.ConsumeIntegral<int64_t>() : input.ConsumeIntegral<uint8_t>());
  }
  const auto bytes = penstock::PayloadBytes(header.type, header.shape, "tensor");
  DemandReason(bytes.status());
  header.byte_size = bytes.ok() && input.ConsumeBool() ? *bytes : input.ConsumeIntegral<int64_t>();
  return header;
}

// The bytes of a header that passed, counted without any care for overflow of 64 bits.
__int128 BytesOf(const penstock::TensorHeader& header) {
  __int128 bytes = penstock::ItemSize(header.type);
  for (const int64_t dimension : header.shape) bytes *= dimension;
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const penstock::WireLimits limits{.allow_empty_name = input.ConsumeBool()};
  std::vector<penstock::TensorHeader> headers;
  while (input.remaining_bytes() > 0 && headers.size() < 70) headers.push_back(Header(input));
  const absl::Status status = penstock::ValidateTensorHeaders(headers, "tensors", limits);
  DemandReason(status);
  if (!status.ok()) return 0;
  __int128 sum = 0;
  for (const penstock::TensorHeader& header : headers) {
    Demand(penstock::IsKnown(header.type), "an unknown type passed");
    Demand(static_cast<int>(header.shape.size()) <= limits.max_rank, "a rank beyond the limit passed");
    Demand(BytesOf(header) == header.byte_size, "a wrong number of bytes passed");
    Demand(header.byte_size <= limits.max_tensor_bytes, "a tensor beyond the limit passed");
    sum += header.byte_size;
  }
  Demand(sum <= limits.max_request_bytes, "a request beyond the limit passed");
  return 0;
}
