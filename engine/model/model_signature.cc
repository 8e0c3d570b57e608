#include "engine/model/model_signature.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

bool IsFloating(DataType type) {
  return type == DataType::kFp16 || type == DataType::kBf16 || type == DataType::kFp32 || type == DataType::kFp64;
}

using Signatures = std::vector<TensorSignature>;
using Flow = std::optional<Signatures>;  // what passes between two layers; nothing: only a run can tell

// Whether it says nothing, not even of how many values: one of several may be anything.
bool IsAny(const Signatures& signatures) { return signatures.size() == 1 && signatures[0].any; }

TensorSignature Any(std::string name) { return {std::move(name), DataType::kUnspecified, {}, /*any=*/true}; }

std::string Text(const Signatures& signatures) {
  return absl::StrJoin(signatures, " and ", [](std::string* out, const TensorSignature& one) {
    if (one.any) return absl::StrAppend(out, "any value");
    const std::string_view type = DataTypeName(one.type);
    absl::StrAppend(out, absl::string_view(type.data(), type.size()), " [", absl::StrJoin(one.shape, ", "), "]");
  });
}

bool Fits(const TensorSignature& given, const TensorSignature& taken, bool keeps_leading) {
  if (given.any || taken.any) return true;
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

absl::Status CheckFit(const Flow& given, const Layer& layer, const std::string& field) {
  const Signatures taken = layer.InputSignature();
  if (!given.has_value() || taken.empty() || IsAny(taken)) return absl::OkStatus();
  bool fits = given->size() == taken.size();
  for (size_t i = 0; fits && i < taken.size(); ++i) fits = Fits((*given)[i], taken[i], layer.KeepsLeadingDimensions());
  if (fits) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat(field, ": takes ", Text(taken), ", got ", Text(*given)))
      .With("field", field)
      .With("value", Text(*given));
}

// What the layer makes of `given`.
Flow After(const Flow& given, const Layer& layer) {
  Flow made = layer.OutputSignature();
  if (made->empty()) {
    made = given;
    for (size_t i = 0; made.has_value() && i < made->size(); ++i) {
      (*made)[i].name = made->size() == 1 ? "output" : absl::StrCat("output", i);
    }
    return made;
  }
  if (IsAny(*made)) return std::nullopt;
  if (layer.KeepsLeadingDimensions() && made->size() == 1) {
    if (!given.has_value()) return std::nullopt;
    const int64_t width = (*made)[0].shape.back();
    (*made)[0].shape = given->front().shape;
    (*made)[0].shape.back() = width;
  }
  return made;
}

// Layers that take anything pass it on as it is, so the first that says what it takes speaks for them.
Signatures InputsOf(const std::vector<NamedLayer>& layers) {
  Signatures any;
  for (const NamedLayer& named : layers) {
    Signatures taken = named.layer->InputSignature();
    if (!taken.empty() && !IsAny(taken)) return taken;
    if (any.empty()) any = std::move(taken);
    if (!named.layer->OutputSignature().empty()) break;
  }
  return any;
}

absl::StatusOr<Flow> FollowLayers(const std::vector<NamedLayer>& layers, const Signatures& inputs,
                                  const std::string& field) {
  Flow flow;
  if (!inputs.empty() && !IsAny(inputs)) flow = inputs;
  for (size_t i = 0; i < layers.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckFit(flow, *layers[i].layer, absl::StrCat(field, "[", i, "]")));
    flow = After(flow, *layers[i].layer);
  }
  return flow;
}

}  // namespace

absl::StatusOr<LayerSignature> SignatureOfSequence(const std::vector<NamedLayer>& layers, const std::string& field) {
  LayerSignature all;
  all.inputs = InputsOf(layers);
  PENSTOCK_ASSIGN_OR_RETURN(Flow outputs, FollowLayers(layers, all.inputs, field));
  const bool passes_on = std::all_of(layers.begin(), layers.end(),
                                     [](const NamedLayer& named) { return named.layer->OutputSignature().empty(); });
  if (!passes_on) all.outputs = outputs.has_value() ? *std::move(outputs) : Signatures{Any("output")};
  return all;
}

absl::StatusOr<ModelSignature> SignatureOf(const std::vector<NamedLayer>& layers, const Loss* loss,
                                           const LossSpec& loss_spec) {
  ModelSignature model;
  model.inputs = InputsOf(layers);
  if (model.inputs.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.model.layers: one of them must fix the shape of its input, got ", layers.size(),
                              " that don't"))
        .With("field", "spec.model.layers")
        .With("value", absl::StrCat(layers.size()));
  }
  const auto has_rows = [](const TensorSignature& input) { return input.any || !input.shape.empty(); };
  if (std::none_of(model.inputs.begin(), model.inputs.end(), has_rows)) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.model.layers: one of the inputs must have rows, got ", Text(model.inputs)))
        .With("field", "spec.model.layers")
        .With("value", Text(model.inputs));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Flow outputs, FollowLayers(layers, model.inputs, "spec.model.layers"));
  if (outputs.has_value()) model.outputs = *outputs;
  if (loss == nullptr) return model;
  PENSTOCK_ASSIGN_OR_RETURN(const int output, LossOutput(loss_spec, model.outputs, "spec.loss"));
  if (outputs.has_value()) PENSTOCK_RETURN_IF_ERROR(loss->CheckOutput(outputs->at(output)));
  if (!loss->needs_target()) return model;
  if (outputs.has_value()) {
    const TensorSignature& of = outputs->at(output);
    const auto refused = [&](const std::string& problem) {
      return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                   absl::StrCat("spec.loss.output: ", problem, ", got ", Text({of})))
          .With("field", "spec.loss.output")
          .With("value", Text({of}));
    };
    if (of.shape.empty()) return refused("must have rows; a number that is the loss itself is scalar_output's");
    if (!of.any && !IsFloating(of.type)) {
      return refused("must be of a floating type, for the loss compares it with a target");
    }
  }
  model.targets = {outputs.has_value() ? loss->Target(outputs->at(output)) : Any("target")};
  return model;
}

}  // namespace penstock
