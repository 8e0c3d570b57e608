#include "engine/schedule/generators.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

const std::vector<ScheduleKind>& ScheduleKinds() {
  static const auto* kinds = new std::vector<ScheduleKind>{
      {"gpipe", "fill-drain: every forward, then every backward", true, FillDrain},
      {"1f1b", "one forward, one backward: as fast, with fewer live activations", true, OneForwardOneBackward},
      {"forward-only", "inference", false, ForwardOnly},
  };
  return *kinds;
}

absl::StatusOr<ScheduleKind> FindScheduleKind(std::string_view name) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.name == name) return kind;
  }
  const std::string known =
      absl::StrJoin(ScheduleKinds(), ", ", [](std::string* out, const ScheduleKind& kind) { out->append(kind.name); });
  return InvalidField("kind", absl::StrCat("must be one of ", known), name);
}

absl::StatusOr<Schedule> Generate(const ScheduleRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, FindScheduleKind(request.kind));
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.ranks, request.ranks, request.microbatches));
  return kind.generate(request.ranks, request.microbatches);
}

}  // namespace penstock
