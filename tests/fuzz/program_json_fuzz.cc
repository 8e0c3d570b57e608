// Feeds foreign text to the reader of JSON records. What it takes must come back from its own text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/program/program_json.h"
#include "tests/fuzz/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::testing::Demand;
  using penstock::testing::DemandReason;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto document = penstock::ParseProgramJson(text, "record", {});
  DemandReason(document.status());
  if (!document.ok()) return 0;
  const auto again = penstock::ParseProgramJson(document->dump(), "record", {});
  Demand(again.ok() && *again == *document, "a document's text does not give it back");
  return 0;
}
