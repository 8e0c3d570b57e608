#pragma once

// The text that stands beside a checkpoint's tensors.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// The last step that a state from outside may have. A state counts on from it, in doubles too.
inline constexpr int64_t kMaxStep = int64_t{1} << 53;

// What the manifest says. Texts hold printable ASCII without quotes and backslashes.
struct CheckpointManifest {
  int64_t step = 0;     // 0 to kMaxStep
  int64_t bytes = 0;    // of state.safetensors
  uint32_t crc32c = 0;  // of state.safetensors
  std::string spec_digest = {};
  int64_t created_unix_ms = 0;
  std::vector<std::string> names = {};  // of the tensors, in the order of the file

  bool operator==(const CheckpointManifest&) const = default;
};

// True for a text that a manifest may hold.
bool IsManifestText(std::string_view text);

// One JSON object, a field per line, always in the same form.
std::string FormatManifest(const CheckpointManifest& manifest);

// Reads exactly what FormatManifest() writes: any other byte is INVALID_ARGUMENT.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text);

}  // namespace penstock
