#include "engine/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"
#include "engine/wire/checksum.h"

namespace penstock {
namespace {

// The value of `  "key": value` with an optional comma at the end of the line that holds the key.
std::optional<std::string_view> ValueOf(std::string_view text, std::string_view key) {
  const std::string start = "\n  \"" + std::string(key) + "\": ";
  const size_t found = text.find(start);
  if (found == std::string_view::npos) return std::nullopt;
  std::string_view value = text.substr(found + start.size());
  value = value.substr(0, value.find('\n'));
  if (value.ends_with(',')) value.remove_suffix(1);
  return value;
}

std::string Unquoted(std::string_view text) {
  if (text.starts_with('"')) text.remove_prefix(1);
  if (text.ends_with('"')) text.remove_suffix(1);
  return std::string(text);
}

bool ReadNumber(std::string_view text, std::string_view key, int64_t* number) {
  const auto value = ValueOf(text, key);
  return value && absl::SimpleAtoi(absl::string_view(value->data(), value->size()), number);
}

}  // namespace

bool IsManifestText(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

std::string FormatManifest(const CheckpointManifest& manifest) {
  const std::string names =
      manifest.names.empty() ? "" : absl::StrCat("\"", absl::StrJoin(manifest.names, "\", \""), "\"");
  std::string text =
      absl::StrFormat("{\n  \"format\": %d,\n  \"step\": %d,\n  \"bytes\": %d,\n  \"crc32c\": \"%08x\",\n",
                      manifest.format, manifest.step, manifest.bytes, manifest.crc32c);
  if (manifest.format > 1) absl::StrAppend(&text, "  \"file\": \"", manifest.file, "\",\n");
  absl::StrAppend(&text, "  \"spec_digest\": \"", manifest.spec_digest, "\",\n");
  if (manifest.format > 1) {
    absl::StrAppend(&text, "  \"specification\": \"", absl::Base64Escape(manifest.specification),
                    "\",\n  \"rotating\": ", manifest.rotating ? 1 : 0, ",\n");
  }
  if (manifest.format > 2) {
    absl::StrAppend(&text, "  \"life\": \"", manifest.life, "\",\n  \"sequence\": ", manifest.sequence,
                    ",\n  \"version\": ", manifest.version, ",\n  \"whole\": ", manifest.whole ? 1 : 0,
                    ",\n  \"automatic\": ", manifest.automatic ? 1 : 0, ",\n");
  }
  if (manifest.format > 3) absl::StrAppend(&text, "  \"training\": \"", manifest.training, "\",\n");
  absl::StrAppend(&text, "  \"created_unix_ms\": ", manifest.created_unix_ms, ",\n  \"names\": [", names, "]");
  if (manifest.format > 1) absl::StrAppendFormat(&text, ",\n  \"manifest_crc32c\": \"%08x\"", Crc32c(text));
  return text + "\n}\n";
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text) {
  CheckpointManifest manifest;
  int64_t format = 0;
  int64_t rotating = 0;
  const auto checksum = ValueOf(text, "crc32c");
  const auto digest = ValueOf(text, "spec_digest");
  const auto names = ValueOf(text, "names");
  bool good = ReadNumber(text, "format", &format) && ReadNumber(text, "step", &manifest.step) &&
              ReadNumber(text, "bytes", &manifest.bytes) &&
              ReadNumber(text, "created_unix_ms", &manifest.created_unix_ms) && checksum && digest && names &&
              absl::SimpleHexAtoi(Unquoted(*checksum), &manifest.crc32c) && format >= 1 && format <= 4;
  good = good && manifest.step >= 0 && manifest.step <= kMaxStep && manifest.bytes >= 0;
  manifest.format = static_cast<int>(format);
  if (good && format >= 2) {
    const auto file = ValueOf(text, "file");
    const auto specification = ValueOf(text, "specification");
    good = file && specification && ReadNumber(text, "rotating", &rotating) &&
           absl::Base64Unescape(Unquoted(*specification), &manifest.specification);
    manifest.rotating = rotating == 1;
    if (good) manifest.file = Unquoted(*file);
    good = good && std::find(kStateFiles.begin(), kStateFiles.end(), manifest.file) != kStateFiles.end();
  }
  if (good && format >= 3) {
    const auto life = ValueOf(text, "life");
    int64_t whole = 0;
    int64_t automatic = 0;
    good = life && ReadNumber(text, "sequence", &manifest.sequence) && ReadNumber(text, "version", &manifest.version) &&
           ReadNumber(text, "whole", &whole) && ReadNumber(text, "automatic", &automatic);
    good = good && manifest.sequence >= 0 && manifest.version >= 0;
    manifest.whole = whole == 1;
    manifest.automatic = automatic == 1;
    if (good) manifest.life = Unquoted(*life);
  }
  if (good && format == 4) {
    const auto training = ValueOf(text, "training");
    if (training) manifest.training = Unquoted(*training);
    good = !manifest.training.empty();
  }
  if (good) {
    manifest.spec_digest = Unquoted(*digest);
    std::string_view list = *names;
    if (list.starts_with('[')) list.remove_prefix(1);
    if (list.ends_with(']')) list.remove_suffix(1);
    if (!list.empty()) {
      manifest.names = absl::StrSplit(Unquoted(list), "\", \"");
    }
    // What was read above with a loose hand must be the only way to write it.
    good = FormatManifest(manifest) == text;
  }
  if (!good) return InvalidField("manifest", "is not what was written", std::to_string(text.size()) + " bytes");
  return manifest;
}

}  // namespace penstock
