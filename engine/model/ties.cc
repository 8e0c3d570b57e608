#include "engine/model/ties.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

absl::Status TieError(absl::StatusCode code, const std::string& field, const std::string& problem,
                      const std::string& value) {
  return Error(code, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

std::optional<TiedUse> Find(const std::vector<NamedLayer>& layers, const std::string& name) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const NamedTensors& parameters = layers[layer].layer->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (absl::StrCat(layers[layer].name, ".", parameters[p].name) == name) {
        return TiedUse{.layer = static_cast<int>(layer), .parameter = static_cast<int>(p)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<TieGroup>> CheckTies(const std::vector<TieSpec>& ties,
                                                const std::vector<NamedLayer>& layers) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  std::vector<TieGroup> groups;
  std::set<std::string> known;
  for (size_t i = 0; i < ties.size(); ++i) {
    const std::string field = absl::StrCat("spec.model.ties[", i, "].parameters");
    if (ties[i].parameters.size() < 2) {
      return TieError(kInvalid, field, "must be at least two", absl::StrCat(ties[i].parameters.size()));
    }
    TieGroup group;
    at::IntArrayRef shape;
    for (size_t j = 0; j < ties[i].parameters.size(); ++j) {
      const std::string& name = ties[i].parameters[j];
      const std::string place = absl::StrCat(field, "[", j, "]");
      const std::optional<TiedUse> use = Find(layers, name);
      if (!use.has_value()) {
        return TieError(absl::StatusCode::kNotFound, place, "is no parameter of the model", Shortened(name));
      }
      if (!known.insert(name).second) return TieError(kInvalid, place, "is tied already", name);
      const at::IntArrayRef own = layers[use->layer].layer->parameters()[use->parameter].tensor.sizes();
      if (j == 0) shape = own;
      if (own != shape) {
        return TieError(kInvalid, place, absl::StrCat("must have the shape [", absl::StrJoin(shape, ", "), "]"),
                        absl::StrCat(name, " of shape [", absl::StrJoin(own, ", "), "]"));
      }
      group.uses.push_back(*use);
    }
    std::sort(group.uses.begin(), group.uses.end(), [](const TiedUse& a, const TiedUse& b) {
      return std::pair(a.layer, a.parameter) < std::pair(b.layer, b.parameter);
    });
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace penstock
