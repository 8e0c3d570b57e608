#pragma once

// What the folders below bring: the registry knows layer kinds and reference models by these two tables alone, so that
// no include goes down.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer.h"
#include "engine/model/model_spec.h"

namespace penstock {

inline constexpr int kMaxLayers = 4096;  // in one list

// By kind; layers/built_in_layers.cc has them.
const std::map<std::string, LayerFactory>& BuiltInLayerKinds();

// Makes a list of layers from the options of a reference model; `path` is the field of the request that holds them, for
// errors: spec.model.options.
using ReferenceExpander = absl::StatusOr<std::vector<LayerSpec>> (*)(const OptionMap& options, const std::string& path);

// By name; reference/reference_models.cc has them.
const std::map<std::string, ReferenceExpander>& BuiltInReferenceModels();

}  // namespace penstock
