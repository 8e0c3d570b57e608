#include "engine/wire/caller_name.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr size_t kMaxBytes = 128;

bool IsCallerPart(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '@' || c == ':' || c == '-';
}

}  // namespace

absl::Status CheckCallerName(std::string_view caller, std::string_view field) {
  const bool good =
      !caller.empty() && caller.size() <= kMaxBytes && std::all_of(caller.begin(), caller.end(), IsCallerPart);
  if (good) return absl::OkStatus();
  const std::string shown = Shortened(caller);
  return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
               absl::StrCat(std::string(field), ": must be 1 to ", kMaxBytes,
                            " of a to z, A to Z, 0 to 9 and _ . @ : -, got ", shown))
      .With("field", field)
      .With("value", shown);
}

}  // namespace penstock
