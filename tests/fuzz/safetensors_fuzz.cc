// Feeds foreign bytes to the reader of safetensors files. What it takes must come back from the writer.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/model/safetensors.h"
#include "engine/tensor/codec.h"
#include "tests/fuzz/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::testing::Demand;
  using penstock::testing::DemandReason;
  const auto file = penstock::ReadSafetensors({reinterpret_cast<const char*>(data), size});
  DemandReason(file.status());
  if (!file.ok()) return 0;
  std::string bytes;
  const absl::Status written = penstock::WriteSafetensors(file->tensors, file->metadata, [&](std::string_view part) {
    bytes += part;
    return absl::OkStatus();
  });
  Demand(written.ok(), "what was read can't be written");
  const auto again = penstock::ReadSafetensors(bytes);
  Demand(again.ok() && again->metadata == file->metadata && again->tensors.size() == file->tensors.size(),
         "what was written is not what was read");
  for (size_t i = 0; i < file->tensors.size(); ++i) {
    Demand(again->tensors[i].name == file->tensors[i].name, "a name changes");
    Demand(again->tensors[i].tensor.sizes() == file->tensors[i].tensor.sizes(), "a shape changes");
    Demand(penstock::BytesOf(again->tensors[i].tensor) == penstock::BytesOf(file->tensors[i].tensor),
           "elements change");
  }
  return 0;
}
