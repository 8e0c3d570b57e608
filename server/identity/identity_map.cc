#include "server/identity/identity_map.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/identity/line_words.h"

namespace penstock {

absl::StatusOr<IdentityMap> IdentityMap::Parse(std::string_view text, std::string_view file) {
  IdentityMap map;
  const auto take = [&](const std::vector<std::string_view>& words, int number) -> absl::Status {
    const std::string field = absl::StrCat(std::string(file), ":", number);
    if (words.size() != 3) {
      return InvalidField(field, "must have an identity, a role and a pattern of pipelines",
                          absl::StrCat(words.size(), " words"));
    }
    PENSTOCK_RETURN_IF_ERROR(CheckIdentityName(words[0], field));
    Identity identity;
    identity.name = std::string(words[0]);
    PENSTOCK_ASSIGN_OR_RETURN(identity.role, ParseRole(words[1], field));
    PENSTOCK_ASSIGN_OR_RETURN(identity.pipelines, PipelinePattern::Parse(words[2], field));
    const std::string name = identity.name;
    if (!map.identities_.emplace(name, std::move(identity)).second) {
      return InvalidField(field, "must not name an identity again", name);
    }
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachLine(text, take));
  return map;
}

const Identity* IdentityMap::Find(std::string_view name) const {
  const auto found = identities_.find(name);
  return found == identities_.end() ? nullptr : &found->second;
}

}  // namespace penstock
