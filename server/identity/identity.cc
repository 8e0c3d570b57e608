#include "server/identity/identity.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr std::array<std::string_view, 4> kRoleNames = {"viewer", "infer", "train", "admin"};
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxPatternBytes = 128;

bool IsNamePart(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::string_view("_.@:/-").find(c) != std::string::npos;
}

bool IsPatternPart(char c) {
  return absl::ascii_islower(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
         c == '_' || c == '-' || c == '*';
}

// What a fault shows of a text: a file may hold anything.
std::string Shown(std::string_view text) { return std::string(text.substr(0, 64)); }

}  // namespace

std::string_view NameOf(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

absl::StatusOr<Role> ParseRole(std::string_view text, std::string_view field) {
  const auto found = std::find(kRoleNames.begin(), kRoleNames.end(), text);
  if (found == kRoleNames.end()) {
    return InvalidField(field, "must be viewer, infer, train or admin", Shown(text));
  }
  return static_cast<Role>(found - kRoleNames.begin());
}

absl::StatusOr<PipelinePattern> PipelinePattern::Parse(std::string_view text, std::string_view field) {
  const bool good =
      !text.empty() && text.size() <= kMaxPatternBytes && std::all_of(text.begin(), text.end(), IsPatternPart);
  if (!good) {
    return InvalidField(field, absl::StrCat("must be 1 to ", kMaxPatternBytes, " of a to z, 0 to 9, _, - and *"),
                        Shown(text));
  }
  return PipelinePattern(std::string(text));
}

// Goes back to the last `*` only: an earlier one could take no more than that one can.
bool PipelinePattern::Matches(std::string_view pipeline) const {
  size_t at = 0;
  size_t star = std::string::npos;
  size_t taken = 0;  // by the last `*`, from where it stood
  for (size_t i = 0; i < pipeline.size();) {
    if (at < text_.size() && text_[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < text_.size() && text_[at] == pipeline[i]) {
      ++at;
      ++i;
    } else if (star != std::string::npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  while (at < text_.size() && text_[at] == '*') ++at;
  return at == text_.size();
}

absl::Status CheckIdentityName(std::string_view name, std::string_view field) {
  const bool good = !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), IsNamePart);
  if (good) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be 1 to ", kMaxNameBytes, " of a to z, A to Z, 0 to 9 and _ . @ : / -"),
                      Shown(name));
}

}  // namespace penstock
