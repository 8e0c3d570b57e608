// Feeds foreign text to the reader of checkpoints' manifests, once as it is and once with the right checksum: what it
// takes is, byte for byte, what the writer writes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/wire/checksum.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using penstock::testing::Demand;
using penstock::testing::DemandReason;

void Read(std::string_view text) {
  const auto manifest = penstock::ParseManifest(text);
  DemandReason(manifest.status());
  if (!manifest.ok()) return;
  Demand(penstock::FormatManifest(*manifest) == text, "what was written is not what was read");
  Demand(manifest->step >= 0 && manifest->step <= penstock::kMaxStep, "a step is out of its range");
  Demand(manifest->bytes >= 0 && manifest->sequence >= 0 && manifest->version >= 0, "a number is below 0");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  Read(text);
  constexpr std::string_view kChecksum = ",\n  \"manifest_crc32c\": \"";
  const size_t at = text.find(kChecksum);
  if (at == std::string::npos || at + kChecksum.size() + 8 > text.size()) return 0;
  const uint32_t checksum = penstock::Crc32c(std::string_view(text).substr(0, at));
  Read(text.replace(at + kChecksum.size(), 8, absl::StrFormat("%08x", checksum)));
  return 0;
}
