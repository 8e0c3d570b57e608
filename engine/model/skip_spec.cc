#include "engine/model/skip_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

bool Contains(const std::vector<SkipName>& names, const SkipName& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Follows the layers in order and keeps what is on its way.
class Matcher {
 public:
  void Add(const std::string& layer, const SkipDeclaration& declared) {
    for (const SkipName& skip : declared.stashes) {
      if (Contains(declared.pops, skip)) Fault(layer, " declared '", skip, "' both as stashable and as poppable");
    }
    for (const SkipName& skip : declared.stashes) {
      if (Contains(declared.pops, skip)) continue;
      if (Contains(stashed_, skip)) {
        Fault(layer, " redeclared '", skip, "' as stashable but not isolated by namespace");
      } else {
        stashed_.push_back(skip);
      }
    }
    for (const SkipName& skip : declared.pops) {
      if (!Contains(declared.stashes, skip)) AddPop(layer, skip);
    }
  }

  SkipMatch Finish() {
    for (const SkipName& skip : stashed_) {
      if (!Contains(popped_, skip)) match_.open.stashes.push_back(skip);
    }
    return std::move(match_);
  }

 private:
  void AddPop(const std::string& layer, const SkipName& skip) {
    if (Contains(popped_, skip)) {
      Fault(layer, " redeclared '", skip, "' as poppable but not isolated by namespace");
    } else if (Contains(stashed_, skip)) {
      popped_.push_back(skip);
    } else {
      match_.open.pops.push_back(skip);
      match_.open_pops_of.push_back(layer);
    }
  }

  void Fault(const std::string& layer, const char* verb, const SkipName& skip, const char* how) {
    match_.faults.push_back(absl::StrCat("'", layer, "'", verb, skip.name, how));
  }

  std::vector<SkipName> stashed_;
  std::vector<SkipName> popped_;
  SkipMatch match_;
};

}  // namespace

SkipMatch MatchSkips(const std::vector<std::string>& layers, const std::vector<SkipDeclaration>& declarations) {
  PENSTOCK_CHECK(layers.size() == declarations.size());
  Matcher matcher;
  for (size_t i = 0; i < layers.size(); ++i) matcher.Add(layers[i], declarations[i]);
  return matcher.Finish();
}

absl::Status SkipFaults(const std::vector<std::string>& faults, std::string_view field) {
  if (faults.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
               absl::StrCat("one or more pairs of stash and pop do not match:\n\n",
                            absl::StrJoin(
                                faults, "\n",
                                [](std::string* out, const std::string& fault) { absl::StrAppend(out, "* ", fault); })))
      .With("field", field);
}

absl::Status CheckSkips(const std::vector<std::string>& layers, const std::vector<SkipDeclaration>& declarations) {
  SkipMatch match = MatchSkips(layers, declarations);
  for (size_t i = 0; i < match.open.pops.size(); ++i) {
    match.faults.push_back(absl::StrCat("'", match.open_pops_of[i], "' declared '", match.open.pops[i].name,
                                        "' as poppable but it was not stashed"));
  }
  for (const SkipName& skip : match.open.stashes) {
    match.faults.push_back(absl::StrCat("no module declared '", skip.name, "' as poppable but stashed"));
  }
  return SkipFaults(match.faults, "spec.model.layers");
}

}  // namespace penstock
