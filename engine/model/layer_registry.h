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
  bool original_names = false;  // its tensors have names of the model: an exported program's

  // What a parameter or buffer of the layer is called in the model: LAYER.TENSOR.
  std::string TensorName(const std::string& tensor) const { return original_names ? tensor : name + "." + tensor; }
};

// What holds for all layers of a model.
struct BuildOptions {
  bool deferred_batch_norm = false;
  bool tuple_as_one_argument = false;
  std::string dtype = {};  // of ModelSpec
};
BuildOptions BuildOptionsOf(const ModelSpec& spec);

// The layers of a specification: a reference model expanded, the explicit list, or an exported program's; names filled
// in where empty.
//
// Fails:     MODEL_NOT_FOUND; SPEC_INVALID naming field and value: none or several given, a bad or repeated name, too
//            many layers.
absl::StatusOr<std::vector<LayerSpec>> ExpandModel(const ModelSpec& spec);

// What the specification ties, and what its exported program does.
std::vector<TieSpec> TiesOf(const ModelSpec& spec);

// Builds every layer with weights that depend only on (seed, position, options). `wanted`, by position: those that are
// not come as BuildLayerShapes makes them; empty: all are.
//
// Fails:     SPEC_INVALID naming field and value, for an unknown kind too, with the known ones; HOST_MEMORY.
absl::StatusOr<std::vector<NamedLayer>> BuildLayers(const std::vector<LayerSpec>& specs, uint64_t seed,
                                                    const BuildOptions& options = {},
                                                    const std::vector<bool>& wanted = {});

// The same layers with parameters that have types and shapes but no memory: to know sizes before anything is allocated.
absl::StatusOr<std::vector<NamedLayer>> BuildLayerShapes(const std::vector<LayerSpec>& specs,
                                                         const BuildOptions& options = {});

// Whether any of the layers, or of those inside them, comes of a library (RegisterLayerKind).
bool AnyOfLibrary(const std::vector<LayerSpec>& layers);

// The layers inside a layer, of `request.layers`, from the generator of the request; and the field that holds them, for
// errors: spec.model.layers[3].layers.
absl::StatusOr<std::vector<NamedLayer>> BuildInnerLayers(const LayerRequest& request);
std::string InnerLayersField(const LayerRequest& request);

// Adds a kind to the built-in ones. `library`, if any, is what a failure of its factory names. Any thread.
// ALREADY_EXISTS / SPEC_INVALID for a kind that is there.
absl::Status RegisterLayerKind(const std::string& kind, LayerFactory factory, const std::string& library = "");

std::vector<std::string> LayerKinds();       // sorted
std::vector<std::string> ReferenceModels();  // sorted

}  // namespace penstock
