#pragma once

// The text that stands beside a checkpoint's tensors.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// The last step that a state from outside may have. A state counts on from it, in doubles too.
inline constexpr int64_t kMaxStep = int64_t{1} << 53;

// A checkpoint's tensors are in one of these files. The second serves while the first is replaced, and vice versa.
inline constexpr std::array<std::string_view, 2> kStateFiles = {"state.safetensors", "state-2.safetensors"};

// What the manifest says. Texts hold printable ASCII without quotes and backslashes.
struct CheckpointManifest {
  // 1: before manifests kept specifications: the first file, no specification, not rotating, no checksum of its own.
  // 2: without a place. 3: with one. 4: with a training that goes on from it.
  int format = 2;
  int64_t step = 0;     // 0 to kMaxStep
  int64_t bytes = 0;    // of the file with the tensors
  uint32_t crc32c = 0;  // of the file with the tensors
  std::string file = std::string(kStateFiles[0]);
  std::string spec_digest = {};
  std::string specification = {};  // any bytes; empty: none
  bool rotating = false;           // saved to be deleted when enough newer ones are there
  std::string life = {};           // CheckpointPlace's; and the next four
  int64_t sequence = 0;
  int64_t version = 0;
  bool whole = false;
  bool automatic = false;
  std::string training = {};  // CheckpointFacts'; of format 4 only, and not empty there
  int64_t created_unix_ms = 0;
  std::vector<std::string> names = {};  // of the tensors, in the order of the file

  bool operator==(const CheckpointManifest&) const = default;
};

// True for a text that a manifest may hold.
bool IsManifestText(std::string_view text);

// One JSON object, a field per line, always in the same form. The last field is the CRC32C of all before it.
std::string FormatManifest(const CheckpointManifest& manifest);

// Reads exactly what FormatManifest() writes, of any format: any other byte is INVALID_ARGUMENT.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text);

}  // namespace penstock
