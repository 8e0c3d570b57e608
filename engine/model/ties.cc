#include "engine/model/ties.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status TieError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

std::map<std::string, TiedUse> UsesByName(const std::vector<NamedLayer>& layers) {
  std::map<std::string, TiedUse> uses;
  for (size_t l = 0; l < layers.size(); ++l) {
    const NamedTensors& parameters = layers[l].layer->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      uses[layers[l].TensorName(parameters[p].name)] = {static_cast<int>(l), static_cast<int>(p)};
    }
  }
  return uses;
}

}  // namespace

absl::StatusOr<std::vector<TieGroup>> CheckTies(const std::vector<TieSpec>& ties,
                                                const std::vector<NamedLayer>& layers) {
  const std::map<std::string, TiedUse> uses = UsesByName(layers);
  const auto tensor = [&](const TiedUse& use) { return layers[use.layer].layer->parameters()[use.parameter].tensor; };
  std::set<TiedUse> tied;
  std::vector<TieGroup> groups;
  for (size_t i = 0; i < ties.size(); ++i) {
    const std::string list = absl::StrCat("spec.model.ties[", i, "].parameters");
    const std::vector<std::string>& names = ties[i].parameters;
    if (names.size() < 2) {
      return TieError(list, "must be at least two", absl::StrCat(names.size()));
    }
    TieGroup group;
    for (size_t j = 0; j < names.size(); ++j) {
      const std::string field = absl::StrCat(list, "[", j, "]");
      const auto use = uses.find(names[j]);
      if (use == uses.end()) {
        return TieError(field, "is not a parameter of the model", Shortened(names[j]));
      }
      if (!tied.insert(use->second).second) {
        return TieError(field, "is tied already", Shortened(names[j]));
      }
      group.uses.push_back(use->second);
      const at::Tensor first = tensor(group.uses.front());
      if (tensor(use->second).sizes() != first.sizes()) {
        return TieError(field, absl::StrCat("must have the shape of the first, ", ShapeText(first.sizes())),
                        ShapeText(tensor(use->second).sizes()));
      }
    }
    std::sort(group.uses.begin(), group.uses.end());
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace penstock
