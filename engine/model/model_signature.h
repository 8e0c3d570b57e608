#pragma once

// What a list of layers takes and gives as a whole, found without running it.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"

namespace penstock {

// What one layer takes and gives, in the sense of Layer's own signatures: nothing, `any`, or signatures.
struct LayerSignature {
  std::vector<TensorSignature> inputs;
  std::vector<TensorSignature> outputs;
};

// The same of several layers in a row. `field` holds them, for errors.
//
// Fails:     SPEC_INVALID naming the layer (FIELD[3]) and what reaches it.
absl::StatusOr<LayerSignature> SignatureOfSequence(const std::vector<NamedLayer>& layers, const std::string& field);

// The signature of the model and, with a loss (may be null), of its target, if it has one. Follows the layers one by
// one, so that two neighbours which don't fit are found before anything runs. Outputs are empty, and the target `any`,
// if only a run can tell.
//
// Fails:     SPEC_INVALID naming the layer (spec.model.layers[3]) and what reaches it; or spec.model.layers if none of
//            the first layers says what it takes; as LossOutput.
absl::StatusOr<ModelSignature> SignatureOf(const std::vector<NamedLayer>& layers, const Loss* loss,
                                           const LossSpec& loss_spec = {});

}  // namespace penstock
