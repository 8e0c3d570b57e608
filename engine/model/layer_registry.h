#pragma once

// Layer kinds and reference models by name.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer.h"

namespace penstock {

// A layer with its unique name.
struct NamedLayer {
  std::string name;
  std::unique_ptr<Layer> layer;
  bool tuple_as_one_argument = false;
};

// What holds for all layers of a model.
struct BuildOptions {
  bool deferred_batch_norm = false;
  bool tuple_as_one_argument = false;
  std::string dtype = {};  // of ModelSpec
};
BuildOptions BuildOptionsOf(const ModelSpec& spec);

// The layers of a specification: a reference model expanded, or the explicit list; names filled in where empty.
//
// Fails:     MODEL_NOT_FOUND; SPEC_INVALID naming field and value: neither or both given, a bad or repeated name, too many layers.
absl::StatusOr<std::vector<LayerSpec>> ExpandModel(const ModelSpec& spec);

// Builds every layer with weights that depend only on (seed, position, options).
//
// Fails:     SPEC_INVALID naming field and value, for an unknown kind too, with the known ones; HOST_MEMORY.
absl::StatusOr<std::vector<NamedLayer>> BuildLayers(const std::vector<LayerSpec>& specs, uint64_t seed,
                                                    const BuildOptions& options = {});

// The same layers with parameters that have types and shapes but no memory: to know sizes before anything is allocated.
absl::StatusOr<std::vector<NamedLayer>> BuildLayerShapes(const std::vector<LayerSpec>& specs,
                                                         const BuildOptions& options = {});

// The layers inside a layer, of `request.layers`, from the generator of the request; and the field that holds them, for
// errors: spec.model.layers[3].layers.
absl::StatusOr<std::vector<NamedLayer>> BuildInnerLayers(const LayerRequest& request);
std::string InnerLayersField(const LayerRequest& request);

// Adds a kind to the built-in ones. Any thread. ALREADY_EXISTS / SPEC_INVALID for a kind that is there.
absl::Status RegisterLayerKind(const std::string& kind, LayerFactory factory);

std::vector<std::string> LayerKinds();       // sorted
std::vector<std::string> ReferenceModels();  // sorted

}  // namespace penstock
