#include "engine/optim/parameter_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/optim/spec_error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr size_t kNearNames = 3;

// How many characters must change for the pattern to be of the name.
size_t Distance(std::string_view pattern, std::string_view name) {
  std::vector<size_t> above(name.size() + 1);  // of the pattern so far, by the length of the name's beginning
  for (size_t n = 0; n <= name.size(); ++n) above[n] = n;
  for (const char character : pattern) {
    std::vector<size_t> row(name.size() + 1);
    row[0] = above[0] + (character == '*' ? 0 : 1);
    for (size_t n = 1; n <= name.size(); ++n) {
      const bool same = character == '?' || character == name[n - 1];
      row[n] = character == '*' ? std::min(above[n], row[n - 1])
                                : std::min({above[n - 1] + (same ? 0 : 1), above[n] + 1, row[n - 1] + 1});
    }
    above = std::move(row);
  }
  return above.back();
}

std::string NearNames(std::string_view pattern, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& name : names) near.emplace_back(Distance(pattern, name), Shortened(name));
  const size_t count = std::min(kNearNames, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end());
  near.resize(count);
  return absl::StrJoin(near, ", ", [](std::string* out, const auto& one) { out->append(one.second); });
}

absl::Status CheckPattern(const std::string& pattern, const std::string& field, const std::vector<std::string>& names) {
  const auto is_of = [&](const std::string& name) { return MatchesPattern(pattern, name); };
  if (std::any_of(names.begin(), names.end(), is_of)) return absl::OkStatus();
  return OptimizerError(field, absl::StrCat("is the name of no parameter; near are ", NearNames(pattern, names)),
                        Shortened(pattern));
}

}  // namespace

// Goes back to the last `*` only, for what an earlier one takes it could take as well.
bool MatchesPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  std::optional<size_t> star;  // behind the last one
  size_t taken = 0;            // the name's characters up to what the last `*` has taken
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star.has_value()) {
      p = *star;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::optional<size_t> GroupOf(const std::vector<ParameterGroup>& groups, std::string_view name) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const std::string& pattern : groups[g].patterns) {
      if (MatchesPattern(pattern, name)) return g;
    }
  }
  return std::nullopt;
}

bool IsFrozen(const std::vector<ParameterGroup>& groups, std::string_view name) {
  const std::optional<size_t> group = GroupOf(groups, name);
  return group.has_value() && groups[*group].frozen;
}

absl::Status CheckGroups(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string field = absl::StrCat("spec.optimizer.groups[", g, "].patterns");
    if (groups[g].patterns.empty()) return OptimizerError(field, "must name parameters", "nothing");
    for (size_t i = 0; i < groups[g].patterns.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(CheckPattern(groups[g].patterns[i], absl::StrCat(field, "[", i, "]"), names));
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
