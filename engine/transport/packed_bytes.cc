#include "engine/transport/packed_bytes.h"

#include "absl/strings/str_cat.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"

namespace penstock {

absl::Status PackedReader::GetBool(std::string_view field, bool* value) {
  uint8_t byte = 0;
  PENSTOCK_RETURN_IF_ERROR(Get(field, &byte));
  if (byte > 1) return BadRankMessage(field, "must be 0 or 1", absl::StrCat(byte));
  *value = byte == 1;
  return absl::OkStatus();
}

absl::Status PackedReader::GetText(std::string_view field, std::string_view* text) {
  uint32_t size = 0;
  PENSTOCK_RETURN_IF_ERROR(Get(field, &size));
  if (bytes_.size() < size) return Short(field, size);
  *text = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return absl::OkStatus();
}

absl::Status PackedReader::Short(std::string_view field, size_t wanted) const {
  return BadRankMessage(field, absl::StrCat("the header must have ", wanted, " more bytes"),
                        absl::StrCat(bytes_.size()));
}

}  // namespace penstock
