// Layer kind `sequential`: runs the layers of its specification in order, as one layer that is never cut. No options.
//
// Skips between its layers stay inside; those with only one end inside become skips of this layer.

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/model/layer_registry.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/model_signature.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

class SequentialLayer : public Layer {
 public:
  SequentialLayer(std::vector<NamedLayer> layers, SkipDeclaration open, LayerSignature signature)
      : layers_(std::move(layers)), signature_(std::move(signature)) {
    for (const NamedLayer& inner : layers_) AdoptTensors(inner.name, *inner.layer);
    for (const SkipName& skip : open.stashes) DeclareStash(stashes_.emplace_back(NameOutside(skip), skip).first, skip);
    for (const SkipName& skip : open.pops) DeclarePop(pops_.emplace_back(NameOutside(skip), skip).first, skip);
  }

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    SkipTracker inside;
    for (const auto& [name, skip] : pops_) inside.Put(skip, Outside(context).Pop(name));
    Batch values = inputs;
    LayerContext of_inner = context;
    for (const NamedLayer& inner : layers_) {
      values = RunLayer(inner, values, of_inner, inside);
      of_inner.values_checked = false;
    }
    for (const auto& [name, skip] : stashes_) {
      std::optional<Value> value = inside.Take(skip);
      PENSTOCK_CHECK(value.has_value());  // RunLayer has seen that the layer stashed it
      Outside(context).Stash(name, *std::move(value));
    }
    return values;
  }

  void CheckValues(const Batch& inputs) const override { layers_.front().layer->CheckValues(inputs); }

  void Cast(at::ScalarType type) override {
    for (const NamedLayer& inner : layers_) inner.layer->Cast(type);
    signature_ = *SignatureOfSequence(layers_, "");  // it has been found before, of another type
  }
  void CommitStatistics() override {
    for (const NamedLayer& inner : layers_) inner.layer->CommitStatistics();
  }
  void DiscardStatistics(MicroBatchIndex first) override {
    for (const NamedLayer& inner : layers_) inner.layer->DiscardStatistics(first);
  }
  NamedTensors Notes() const override {
    NamedTensors notes;
    for (const NamedLayer& inner : layers_) AddUnder(inner.name, inner.layer->Notes(), &notes);
    return notes;
  }
  void SetNotes(const NamedTensors& notes) override {
    for (const NamedLayer& inner : layers_) inner.layer->SetNotes(TensorsUnder(inner.name, notes));
  }

  std::vector<TensorSignature> InputSignature() const override { return signature_.inputs; }
  std::vector<TensorSignature> OutputSignature() const override { return signature_.outputs; }
  bool KeepsLeadingDimensions() const override {
    return std::all_of(layers_.begin(), layers_.end(),
                       [](const NamedLayer& inner) { return inner.layer->KeepsLeadingDimensions(); });
  }
  int64_t LargestOpenDimension() const override {
    for (const NamedLayer& inner : layers_) {
      if (inner.layer->LargestOpenDimension() > 1) return inner.layer->LargestOpenDimension();
    }
    return 1;
  }

 private:
  using Names = std::vector<std::pair<std::string, SkipName>>;  // outside, and what the layers inside call it

  // The layers' own name with its namespace; marked if another skip is called so already.
  std::string NameOutside(const SkipName& skip) const {
    std::string name = skip.skip_namespace.empty() ? skip.name : absl::StrCat(skip.skip_namespace, "/", skip.name);
    const auto taken = [&](const auto& known) { return known.first == name && known.second != skip; };
    while (std::any_of(stashes_.begin(), stashes_.end(), taken) || std::any_of(pops_.begin(), pops_.end(), taken)) {
      name += "'";
    }
    return name;
  }

  static LayerSkips& Outside(const LayerContext& context) {
    PENSTOCK_CHECK(context.skips != nullptr);
    return *context.skips;
  }

  const std::vector<NamedLayer> layers_;
  LayerSignature signature_;
  Names stashes_;
  Names pops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeSequential(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  PENSTOCK_CHECK(request.layers != nullptr);
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedLayer> layers, BuildInnerLayers(request));
  std::vector<std::string> names;
  std::vector<SkipDeclaration> declarations;
  for (const NamedLayer& inner : layers) {
    names.push_back(inner.name);
    declarations.push_back(inner.layer->skips());
  }
  SkipMatch match = MatchSkips(names, declarations);
  const std::string field = InnerLayersField(request);
  PENSTOCK_RETURN_IF_ERROR(SkipFaults(match.faults, field));
  PENSTOCK_ASSIGN_OR_RETURN(LayerSignature signature, SignatureOfSequence(layers, field));
  return std::make_unique<SequentialLayer>(std::move(layers), std::move(match.open), std::move(signature));
}

}  // namespace penstock
