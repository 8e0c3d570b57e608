#pragma once

// Which parameters a group of the optimizer's specification has, by their names: those that a checkpoint has, so that a
// tied parameter is in one group, by its first name.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/optim/optimizer_spec.h"

namespace penstock {

// Whether a pattern is of this whole name: `*` is any characters, dots too, or none; `?` is one; others are themselves.
bool MatchesPattern(std::string_view pattern, std::string_view name);

// The first group with a pattern of this name; none: the optimizer's own settings are its.
std::optional<size_t> GroupOf(const std::vector<ParameterGroup>& groups, std::string_view name);

bool IsFrozen(const std::vector<ParameterGroup>& groups, std::string_view name);

// Fails: SPEC_INVALID naming a group without patterns, or a pattern that fits none of these names, with near ones.
absl::Status CheckGroups(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names);

}  // namespace penstock
