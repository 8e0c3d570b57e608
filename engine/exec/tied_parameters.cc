#include "engine/exec/tied_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

const NamedTensor& Parameter(const std::vector<NamedLayer>& layers, const TiedUse& use) {
  return layers[use.layer].layer->parameters()[use.parameter];
}

int StageOf(const std::vector<int>& first_layers, int layer) {
  const auto next = std::upper_bound(first_layers.begin(), first_layers.end(), layer);
  return static_cast<int>(next - first_layers.begin()) - 1;
}

// Position of a use among all parameters of its stage.
int IndexInStage(const std::vector<NamedLayer>& layers, const std::vector<int>& first_layers, const TiedUse& use) {
  int index = use.parameter;
  for (int layer = first_layers[StageOf(first_layers, use.layer)]; layer < use.layer; ++layer) {
    index += static_cast<int>(layers[layer].layer->parameters().size());
  }
  return index;
}

// Gives a use its values. What stands on another rank alone is a shape here, which has none to give or to take.
void TakeValues(const at::Tensor& use, const at::Tensor& values) {
  if (!use.is_meta() && !values.is_meta()) use.set_data(values);
}

}  // namespace

void PutTiedGradients(TiedGradients given, TiedGradients& places) {
  for (size_t group = 0; group < places.size(); ++group) {
    for (size_t use = 0; use < places[group].size(); ++use) {
      at::Tensor& gradient = given.at(group).at(use);
      if (gradient.defined()) places[group][use] = std::move(gradient);
    }
  }
}

std::vector<std::vector<StageTie>> TieParameters(const std::vector<TieGroup>& groups, std::vector<NamedLayer>& layers,
                                                 const std::vector<int>& first_layers) {
  at::NoGradGuard no_graph;
  std::vector<std::vector<StageTie>> ties(first_layers.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const NamedTensor& first = Parameter(layers, groups[g].uses.at(0));
    for (size_t position = 0; position < groups[g].uses.size(); ++position) {
      const TiedUse& use = groups[g].uses[position];
      std::vector<StageTie>& of_stage = ties[StageOf(first_layers, use.layer)];
      const bool first_here = of_stage.empty() || of_stage.back().group != static_cast<int>(g);
      if (first_here) {
        of_stage.push_back({.group = static_cast<int>(g),
                            .name = layers[groups[g].uses[0].layer].TensorName(first.name),
                            .uses = {},
                            .owner = position == 0});
      }
      const at::Tensor& parameter = Parameter(layers, use).tensor;
      if (!first_here) {
        const StageTie::Use& copy = of_stage.back().uses[0];
        TakeValues(parameter, Parameter(layers, groups[g].uses[copy.position]).tensor.detach());
      } else if (position != 0 && !first.tensor.is_meta()) {
        TakeValues(parameter, first.tensor.detach().to(parameter.options(), /*non_blocking=*/false, /*copy=*/true));
      }
      of_stage.back().uses.push_back(
          {.position = static_cast<int>(position), .parameter = IndexInStage(layers, first_layers, use)});
    }
  }
  return ties;
}

absl::Status DuplicateParameters(const std::string& name) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("spec.model: module with duplicate parameters on distinct devices is not supported; "
                            "declare a tie, got ",
                            name))
      .With("field", "spec.model.ties")
      .With("value", name);
}

absl::StatusOr<std::vector<TieGroup>> FindSharedParameters(const std::vector<NamedLayer>& layers,
                                                           const std::vector<std::string>& device_of_layer) {
  std::map<const void*, TieGroup> by_memory;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const NamedTensors& parameters = layers[layer].layer->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].tensor.numel() == 0 || parameters[p].tensor.is_meta()) continue;
      TieGroup& group = by_memory[parameters[p].tensor.const_data_ptr()];
      if (!group.uses.empty() && device_of_layer[group.uses[0].layer] != device_of_layer[layer]) {
        return DuplicateParameters(layers[layer].TensorName(parameters[p].name));
      }
      group.uses.push_back({.layer = static_cast<int>(layer), .parameter = static_cast<int>(p)});
    }
  }
  std::vector<TieGroup> shared;
  for (auto& [memory, group] : by_memory) {
    if (group.uses.size() > 1) shared.push_back(std::move(group));
  }
  std::sort(shared.begin(), shared.end(), [](const TieGroup& a, const TieGroup& b) {
    return std::pair(a.uses[0].layer, a.uses[0].parameter) < std::pair(b.uses[0].layer, b.uses[0].parameter);
  });
  return shared;
}

}  // namespace penstock
