#include "engine/model/model_signature.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

using Signatures = std::vector<TensorSignature>;

std::string Text(const Signatures& signatures) {
  return absl::StrJoin(signatures, " and ", [](std::string* out, const TensorSignature& one) {
    const std::string_view type = DataTypeName(one.type);
    absl::StrAppend(out, absl::string_view(type.data(), type.size()), " [", absl::StrJoin(one.shape, ", "), "]");
  });
}

bool Fits(const TensorSignature& given, const TensorSignature& taken, bool keeps_leading) {
  if (given.type != taken.type) return false;
  if (given.shape.size() != taken.shape.size() && !(keeps_leading && given.shape.size() > taken.shape.size())) {
    return false;
  }
  const size_t more = given.shape.size() - taken.shape.size();
  for (size_t d = 0; d < taken.shape.size(); ++d) {
    const int64_t left = given.shape[d + more];
    const int64_t right = taken.shape[d];
    if (left >= 0 && right >= 0 && left != right) return false;
  }
  return true;
}

absl::Status CheckFit(const Signatures& given, const Signatures& taken, const Layer& layer, size_t index) {
  bool fits = given.size() == taken.size();
  for (size_t i = 0; fits && i < taken.size(); ++i) fits = Fits(given[i], taken[i], layer.KeepsLeadingDimensions());
  if (fits) return absl::OkStatus();
  const std::string field = absl::StrCat("spec.model.layers[", index, "]");
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat(field, ": takes ", Text(taken), ", got ", Text(given)))
      .With("field", field)
      .With("value", Text(given));
}

// What the layer makes of `given`.
Signatures After(const Signatures& given, const Layer& layer) {
  Signatures made = layer.OutputSignature();
  if (made.empty()) {
    made = given;
    for (TensorSignature& signature : made) signature.name = "output";
    return made;
  }
  if (layer.KeepsLeadingDimensions() && made.size() == 1 && given.size() == 1) {
    const int64_t width = made[0].shape.back();
    made[0].shape = given[0].shape;
    made[0].shape.back() = width;
  }
  return made;
}

}  // namespace

absl::StatusOr<ModelSignature> SignatureOf(const std::vector<NamedLayer>& layers, const Loss* loss) {
  ModelSignature model;
  for (const NamedLayer& named : layers) {
    model.inputs = named.layer->InputSignature();
    // Layers that take anything pass it on as it is, so the first that says what it takes speaks for them.
    if (!model.inputs.empty()) break;
  }
  if (model.inputs.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.model.layers: one of them must fix the shape of its input, got ", layers.size(),
                              " that don't"))
        .With("field", "spec.model.layers")
        .With("value", absl::StrCat(layers.size()));
  }
  model.outputs = model.inputs;
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = *layers[i].layer;
    if (const Signatures taken = layer.InputSignature(); !taken.empty()) {
      PENSTOCK_RETURN_IF_ERROR(CheckFit(model.outputs, taken, layer, i));
    }
    model.outputs = After(model.outputs, layer);
  }
  if (loss != nullptr) model.targets = {loss->Target(model.outputs.front())};
  return model;
}

}  // namespace penstock
