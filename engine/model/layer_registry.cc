#include "engine/model/layer_registry.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/model/built_in_kinds.h"
#include "engine/model/layer_source.h"
#include "engine/model/precision.h"

namespace penstock {
namespace {

// A state tensor is called optimizer/LAYER.PARAMETER/SLOT, and the wire bounds such names.
constexpr size_t kMaxLayerNameBytes = 64;
constexpr size_t kMaxTensorNameBytes = 96;
constexpr int kMaxDepth = 8;
constexpr char kSequential[] = "sequential";
constexpr char kLayersField[] = "spec.model.layers";

// Who makes layers of a kind, and the library that brought it; empty for a built-in one.
struct KindSource {
  LayerFactory factory;
  std::string library = {};
};

// The known kinds: the built-in ones and those that a program registered. Threads: any.
class KindTable {
 public:
  static KindTable& Get() {
    static KindTable* const table = new KindTable;  // never destroyed: threads may outlive main's statics
    return *table;
  }

  bool Add(const std::string& kind, KindSource source) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return sources_.emplace(kind, std::move(source)).second;
  }

  std::optional<KindSource> Find(const std::string& kind) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = sources_.find(kind);
    return found == sources_.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<std::string> Kinds() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> kinds;
    for (const auto& [kind, source] : sources_) kinds.push_back(kind);
    return kinds;
  }

 private:
  KindTable() {
    for (const auto& [kind, factory] : BuiltInLayerKinds()) sources_.emplace(kind, KindSource{factory});
  }

  mutable absl::Mutex mu_;
  std::map<std::string, KindSource> sources_ ABSL_GUARDED_BY(mu_);
};

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

// Fills in missing names and checks all of them, also those of layers inside layers. `field` holds the list.
absl::StatusOr<std::vector<LayerSpec>> NamedList(std::vector<LayerSpec> layers, const std::string& field, int depth) {
  if (layers.size() > kMaxLayers) {
    return SpecError(field, absl::StrCat("must hold at most ", kMaxLayers), absl::StrCat(layers.size()));
  }
  if (depth > kMaxDepth) {
    return SpecError(field, absl::StrCat("layers must stand in one another at most ", kMaxDepth, " deep"),
                     absl::StrCat(depth));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerSpec& layer = layers[i];
    if (layer.name.empty()) layer.name = absl::StrCat("layer", i);
    const std::string path = absl::StrCat(field, "[", i, "]");
    if (!IsLayerName(layer.name)) {
      return SpecError(path + ".name", absl::StrCat("must be 1 to ", kMaxLayerNameBytes, " letters, digits, _ or -"),
                       Shortened(layer.name));
    }
    if (!names.insert(layer.name).second) {
      return SpecError(path + ".name", "module with duplicate children is not supported: it stands twice", layer.name);
    }
    if (depth > 0 && !layer.device.empty()) {
      return SpecError(path + ".device", "belongs to the layers of the model, not to those inside one",
                       Shortened(layer.device));
    }
    if (!layer.layers.empty() && layer.kind != kSequential) {
      return SpecError(path + ".layers", absl::StrCat("belong to kind ", kSequential, " only"), Shortened(layer.kind));
    }
    PENSTOCK_ASSIGN_OR_RETURN(layer.layers, NamedList(std::move(layer.layers), path + ".layers", depth + 1));
  }
  return layers;
}

// One layer. What differs from layer to layer of the request is set here: options, path, layers.
absl::StatusOr<NamedLayer> BuildLayer(const LayerSpec& spec, const std::string& path, const LayerRequest& shared) {
  const std::optional<KindSource> source = KindTable::Get().Find(spec.kind);
  if (!source.has_value()) {
    return SpecError(path + ".kind", absl::StrCat("is not known; known are ", absl::StrJoin(LayerKinds(), ", ")),
                     Shortened(spec.kind));
  }
  absl::StatusOr<std::unique_ptr<Layer>> layer;
  const bool own = !source->library.empty();
  absl::Status made = (own ? RunLayerCode : RunTorch)([&] {
    layer = source->factory({.options = spec.options,
                             .path = path + ".options",
                             .generator = shared.generator,
                             .shapes_only = shared.shapes_only,
                             .deferred_batch_norm = shared.deferred_batch_norm,
                             .layers = &spec.layers,
                             .tuple_as_one_argument = shared.tuple_as_one_argument,
                             .program = spec.program.get()});
  });
  if (made.ok()) made = layer.status();
  if (made.ok() && *layer == nullptr) {
    made = own ? Error(absl::StatusCode::kFailedPrecondition, "LAYER_FAILED", "its factory made no layer")
               : Bug("a layer's factory", "it made no layer");
  }
  if (!made.ok() && own) {
    made = WithPrefix(made, absl::StrCat("kind ", spec.kind, " of ", source->library, ": "));
  }
  PENSTOCK_RETURN_IF_ERROR(made);
  for (const SkipIsolation& isolation : spec.isolate) (*layer)->Isolate(isolation);
  return NamedLayer{spec.name, *std::move(layer), shared.tuple_as_one_argument, spec.program != nullptr};
}

// Names of layers inside layers add up: LAYER.INNER.PARAMETER.
absl::Status CheckTensorNames(const NamedLayer& layer, const std::string& path) {
  for (const NamedTensors* tensors : {&layer.layer->parameters(), &layer.layer->buffers()}) {
    for (const NamedTensor& tensor : *tensors) {
      if (layer.TensorName(tensor.name).size() > kMaxTensorNameBytes + 1) {
        return SpecError(path + ".layers",
                         absl::StrCat("names down to a parameter must have at most ", kMaxTensorNameBytes, " bytes"),
                         Shortened(tensor.name));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedLayer>> Build(const std::vector<LayerSpec>& specs, uint64_t seed,
                                              const BuildOptions& options, const std::vector<bool>& wanted) {
  PENSTOCK_ASSIGN_OR_RETURN(const at::ScalarType type, DtypeOf(options.dtype));
  const OptionMap none;
  std::vector<NamedLayer> layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = absl::StrCat("spec.model.layers[", i, "]");
    const LayerRequest shared = {.options = none,
                                 .path = path,
                                 .generator = InitialGenerator(seed, LayerIndex(static_cast<int32_t>(i))),
                                 .shapes_only = !wanted.at(i),
                                 .deferred_batch_norm = options.deferred_batch_norm,
                                 .tuple_as_one_argument = options.tuple_as_one_argument};
    PENSTOCK_ASSIGN_OR_RETURN(NamedLayer layer, BuildLayer(specs[i], path, shared));
    PENSTOCK_RETURN_IF_ERROR(CheckTensorNames(layer, path));
    if (type != at::kFloat) PENSTOCK_RETURN_IF_ERROR(RunLayerCode([&] { layer.layer->Cast(type); }));
    layers.push_back(std::move(layer));
  }
  return layers;
}

absl::StatusOr<std::vector<LayerSpec>> ExpandProgram(const ModelSpec& spec) {
  if (!spec.name.empty() || !spec.layers.empty()) {
    return SpecError("spec.model", "must have a program, a name or layers", "several");
  }
  if (!spec.options.empty()) {
    return SpecError("spec.model.options", "belong to a reference model, not to a program",
                     spec.options.begin()->first);
  }
  if (spec.loaded_program == nullptr) {
    return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                 absl::StrCat("spec.model.program: is not in the model root, got ", Shortened(spec.program)))
        .With("field", "spec.model.program")
        .With("value", Shortened(spec.program));
  }
  if (!spec.dtype.empty() || spec.tuple_as_one_argument) {
    return SpecError(spec.dtype.empty() ? "spec.model.tuple_as_one_argument" : "spec.model.dtype",
                     "must not be set: an exported program says this itself", spec.dtype);
  }
  std::vector<LayerSpec> layers;
  for (int i = 0; i < spec.loaded_program->size(); ++i) {
    layers.push_back({.kind = "exported_program",
                      .name = spec.loaded_program->name(i),
                      .options = {{"layer", int64_t{i}}},
                      .program = spec.loaded_program});
  }
  return NamedList(std::move(layers), kLayersField, 0);
}

}  // namespace

std::vector<TieSpec> TiesOf(const ModelSpec& spec) {
  std::vector<TieSpec> ties = spec.ties;
  if (spec.loaded_program == nullptr) return ties;
  const std::vector<TieSpec>& own = spec.loaded_program->ties();
  ties.insert(ties.begin(), own.begin(), own.end());
  return ties;
}

BuildOptions BuildOptionsOf(const ModelSpec& spec) {
  return {.deferred_batch_norm = spec.deferred_batch_norm,
          .tuple_as_one_argument = spec.tuple_as_one_argument,
          .dtype = spec.dtype};
}

absl::StatusOr<std::vector<LayerSpec>> ExpandModel(const ModelSpec& spec) {
  PENSTOCK_RETURN_IF_ERROR(DtypeOf(spec.dtype).status());
  PENSTOCK_RETURN_IF_ERROR(AutocastOf(spec.autocast).status());
  if (!spec.program.empty()) return ExpandProgram(spec);
  if (spec.name.empty() == spec.layers.empty()) {
    return SpecError("spec.model", "must have either a name or layers", spec.name.empty() ? "none" : "both");
  }
  if (spec.name.empty()) {
    if (!spec.options.empty()) {
      return SpecError("spec.model.options", "belong to a reference model, not to layers", spec.options.begin()->first);
    }
    return NamedList(spec.layers, kLayersField, 0);
  }
  const auto reference = BuiltInReferenceModels().find(spec.name);
  if (reference == BuiltInReferenceModels().end()) {
    return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                 absl::StrCat(
                     "spec.model.name: is not known; known are ", absl::StrJoin(ReferenceModels(), ", "),
                     absl::EndsWith(spec.name, ".pt2") ? "; an exported program is named by spec.model.program" : "",
                     ", got ", Shortened(spec.name)))
        .With("field", "spec.model.name")
        .With("value", Shortened(spec.name));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<LayerSpec> layers, reference->second(spec.options, "spec.model.options"));
  return NamedList(std::move(layers), kLayersField, 0);
}

absl::StatusOr<std::vector<NamedLayer>> BuildLayers(const std::vector<LayerSpec>& specs, uint64_t seed,
                                                    const BuildOptions& options, const std::vector<bool>& wanted) {
  return Build(specs, seed, options, wanted.empty() ? std::vector<bool>(specs.size(), true) : wanted);
}

absl::StatusOr<std::vector<NamedLayer>> BuildLayerShapes(const std::vector<LayerSpec>& specs,
                                                         const BuildOptions& options) {
  return Build(specs, /*seed=*/0, options, std::vector<bool>(specs.size(), false));
}

bool AnyOfLibrary(const std::vector<LayerSpec>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) {
    const std::optional<KindSource> source = KindTable::Get().Find(layer.kind);
    return (source.has_value() && !source->library.empty()) || AnyOfLibrary(layer.layers);
  });
}

std::string InnerLayersField(const LayerRequest& request) {
  return absl::StrCat(absl::StripSuffix(request.path, ".options"), ".layers");
}

absl::StatusOr<std::vector<NamedLayer>> BuildInnerLayers(const LayerRequest& request) {
  const std::string field = InnerLayersField(request);
  std::vector<NamedLayer> layers;
  for (size_t i = 0; request.layers != nullptr && i < request.layers->size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(NamedLayer layer,
                              BuildLayer((*request.layers)[i], absl::StrCat(field, "[", i, "]"), request));
    layers.push_back(std::move(layer));
  }
  return layers;
}

absl::Status RegisterLayerKind(const std::string& kind, LayerFactory factory, const std::string& library) {
  if (KindTable::Get().Add(kind, {factory, library})) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "SPEC_INVALID",
               absl::StrCat("layer kind: is known already, got ", kind))
      .With("field", "kind")
      .With("value", kind);
}

std::vector<std::string> LayerKinds() { return KindTable::Get().Kinds(); }

std::vector<std::string> ReferenceModels() {
  std::vector<std::string> names;
  for (const auto& [name, expander] : BuiltInReferenceModels()) names.push_back(name);
  return names;
}

}  // namespace penstock
