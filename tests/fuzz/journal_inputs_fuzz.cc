// Feeds foreign bytes to the reader of a row's column of inputs. What it takes must come back from the writer.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/journal/call_row.h"
#include "tests/fuzz/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::testing::Demand;
  using penstock::testing::DemandReason;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto inputs = penstock::ParseInputs(bytes);
  DemandReason(inputs.status());
  if (!inputs.ok()) return 0;
  Demand(penstock::FormatInputs(*inputs) == bytes, "what was written is not what was read");
  penstock::CallRow row;
  row.inputs = *inputs;
  for (const penstock::StoredInput& input : *inputs) Demand(input.size >= 0, "an input has fewer bytes than none");
  Demand(penstock::ReplayBytes(row) >= 0, "a replay reads fewer bytes than none");
  return 0;
}
