#include "engine/model/layer_registry.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {
namespace {

// A state tensor is called optimizer/LAYER.PARAMETER/SLOT, and the wire bounds such names.
constexpr size_t kMaxLayerNameBytes = 64;

// The known kinds: the built-in ones and those that a program registered. Threads: any.
class KindTable {
 public:
  static KindTable& Get() {
    static KindTable* const table = new KindTable;  // never destroyed: threads may outlive main's statics
    return *table;
  }

  bool Add(const std::string& kind, LayerFactory factory) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return factories_.emplace(kind, factory).second;
  }

  LayerFactory Find(const std::string& kind) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = factories_.find(kind);
    return found == factories_.end() ? nullptr : found->second;
  }

  std::vector<std::string> Kinds() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> kinds;
    for (const auto& [kind, factory] : factories_) kinds.push_back(kind);
    return kinds;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, LayerFactory> factories_ ABSL_GUARDED_BY(mu_) = {
      {"dropout", MakeDropout},    {"gelu", MakeGelu},
      {"gpt_block", MakeGptBlock}, {"gpt_embedding", MakeGptEmbedding},
      {"gpt_head", MakeGptHead},   {"layer_norm", MakeLayerNorm},
      {"linear", MakeLinear},      {"mlp_block", MakeMlpBlock},
      {"relu", MakeRelu},
  };
};

using ReferenceExpander = absl::StatusOr<std::vector<LayerSpec>> (*)(const OptionMap&, const std::string& path);

const std::map<std::string, ReferenceExpander>& ReferenceTable() {
  static const auto* const table = new std::map<std::string, ReferenceExpander>{{"gpt", ExpandGpt}, {"mlp", ExpandMlp}};
  return *table;
}

absl::Status SpecError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

// Dots are kept for LAYER.PARAMETER, so that no two tensors of a model share a name.
bool IsLayerName(const std::string& name) {
  const auto fits = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kMaxLayerNameBytes && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), fits);
}

// Fills in missing names and checks all of them.
absl::StatusOr<std::vector<LayerSpec>> NamedList(std::vector<LayerSpec> layers) {
  if (layers.size() > kMaxLayers) {
    return SpecError("spec.model.layers", absl::StrCat("must hold at most ", kMaxLayers), absl::StrCat(layers.size()));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].name.empty()) layers[i].name = absl::StrCat("layer", i);
    const std::string field = absl::StrCat("spec.model.layers[", i, "].name");
    if (!IsLayerName(layers[i].name)) {
      return SpecError(field, absl::StrCat("must be 1 to ", kMaxLayerNameBytes, " letters, digits, _ or -"),
                       Shortened(layers[i].name));
    }
    if (!names.insert(layers[i].name).second)
      return SpecError(field, "module with duplicate children is not supported: it stands twice", layers[i].name);
  }
  return layers;
}

absl::StatusOr<std::vector<NamedLayer>> Build(const std::vector<LayerSpec>& specs, uint64_t seed, bool shapes_only,
                                              const BuildOptions& options) {
  std::vector<NamedLayer> layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = absl::StrCat("spec.model.layers[", i, "]");
    const LayerFactory factory = KindTable::Get().Find(specs[i].kind);
    if (factory == nullptr) {
      return SpecError(absl::StrCat(path, ".kind"),
                       absl::StrCat("is not known; known are ", absl::StrJoin(LayerKinds(), ", ")),
                       Shortened(specs[i].kind));
    }
    absl::StatusOr<std::unique_ptr<Layer>> layer;
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
      layer = factory({.options = specs[i].options,
                       .path = absl::StrCat(path, ".options"),
                       .generator = InitialGenerator(seed, LayerIndex(static_cast<int32_t>(i))),
                       .shapes_only = shapes_only,
                       .deferred_batch_norm = options.deferred_batch_norm,
                       .layers = &specs[i].layers});
    }));
    if (!layer.ok()) return std::move(layer).status();
    for (const SkipIsolation& isolation : specs[i].isolate) (*layer)->Isolate(isolation);
    layers.push_back({specs[i].name, *std::move(layer), options.tuple_as_one_argument});
  }
  return layers;
}

}  // namespace

BuildOptions BuildOptionsOf(const ModelSpec& spec) {
  return {.deferred_batch_norm = spec.deferred_batch_norm,
          .tuple_as_one_argument = spec.tuple_as_one_argument,
          .dtype = spec.dtype};
}

absl::StatusOr<std::vector<LayerSpec>> ExpandModel(const ModelSpec& spec) {
  if (spec.name.empty() == spec.layers.empty()) {
    return SpecError("spec.model", "must have either a name or layers", spec.name.empty() ? "none" : "both");
  }
  if (spec.name.empty()) {
    if (!spec.options.empty()) {
      return SpecError("spec.model.options", "belong to a reference model, not to layers", spec.options.begin()->first);
    }
    return NamedList(spec.layers);
  }
  const auto reference = ReferenceTable().find(spec.name);
  if (reference == ReferenceTable().end()) {
    return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                 absl::StrCat("spec.model.name: is not known; known are ", absl::StrJoin(ReferenceModels(), ", "),
                              ", got ", Shortened(spec.name)))
        .With("field", "spec.model.name")
        .With("value", Shortened(spec.name));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<LayerSpec> layers, reference->second(spec.options, "spec.model.options"));
  return NamedList(std::move(layers));
}

absl::StatusOr<std::vector<NamedLayer>> BuildLayers(const std::vector<LayerSpec>& specs, uint64_t seed,
                                                    const BuildOptions& options) {
  return Build(specs, seed, /*shapes_only=*/false, options);
}

absl::StatusOr<std::vector<NamedLayer>> BuildLayerShapes(const std::vector<LayerSpec>& specs,
                                                         const BuildOptions& options) {
  return Build(specs, /*seed=*/0, /*shapes_only=*/true, options);
}

absl::Status RegisterLayerKind(const std::string& kind, LayerFactory factory) {
  if (KindTable::Get().Add(kind, factory)) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "SPEC_INVALID",
               absl::StrCat("layer kind: is known already, got ", kind))
      .With("field", "kind")
      .With("value", kind);
}

std::vector<std::string> LayerKinds() { return KindTable::Get().Kinds(); }

std::vector<std::string> ReferenceModels() {
  std::vector<std::string> names;
  for (const auto& [name, expander] : ReferenceTable()) names.push_back(name);
  return names;
}

}  // namespace penstock
