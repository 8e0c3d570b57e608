// What a pipeline runs: layers, within layers too, skips, ties, precision; and what its model takes and gives.

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/spec_fields.h"

namespace penstock {
namespace {

constexpr int kMaxLayers = 4096;    // those within layers too
constexpr int kMaxLayerDepth = 16;  // of layers within layers
constexpr int kMaxNames = 64;       // of skips in one layer
constexpr int kMaxPlaced = 4096;    // layers with a device of their own
constexpr int kMaxTied = 4096;      // ties, and parameters of one

// Reads layers, and counts them over all depths.
class LayerReader {
 public:
  absl::StatusOr<std::vector<LayerSpec>> Layers(const google::protobuf::RepeatedPtrField<v1::LayerSpec>& layers,
                                                const std::string& field, int depth) {
    if (depth > kMaxLayerDepth && !layers.empty()) {
      return SpecInvalid(field, absl::StrCat("must not be nested more than ", kMaxLayerDepth, " deep"),
                         absl::StrCat(depth, " deep"));
    }
    count_ += layers.size();
    PENSTOCK_RETURN_IF_ERROR(CheckCount(count_, kMaxLayers, field, "layers over all depths"));
    std::vector<LayerSpec> specs;
    for (int i = 0; i < layers.size(); ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(LayerSpec spec, Layer(layers[i], absl::StrCat(field, "[", i, "]"), depth));
      specs.push_back(std::move(spec));
    }
    return specs;
  }

 private:
  absl::StatusOr<LayerSpec> Layer(const v1::LayerSpec& layer, const std::string& field, int depth) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(layer.kind(), field + ".kind"));
    PENSTOCK_RETURN_IF_ERROR(CheckText(layer.name(), field + ".name"));
    PENSTOCK_RETURN_IF_ERROR(CheckText(layer.device(), field + ".device"));
    LayerSpec spec{.kind = layer.kind(), .name = layer.name(), .options = {}, .device = layer.device()};
    PENSTOCK_ASSIGN_OR_RETURN(spec.options, ReadOptions(layer.options(), field + ".options"));
    PENSTOCK_RETURN_IF_ERROR(CheckCount(layer.isolate_size(), kMaxNames, field + ".isolate", "entries"));
    for (int i = 0; i < layer.isolate_size(); ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(SkipIsolation isolation,
                                Isolation(layer.isolate(i), absl::StrCat(field, ".isolate[", i, "]")));
      spec.isolate.push_back(std::move(isolation));
    }
    PENSTOCK_ASSIGN_OR_RETURN(spec.layers, Layers(layer.layers(), field + ".layers", depth + 1));
    return spec;
  }

  static absl::StatusOr<SkipIsolation> Isolation(const v1::SkipIsolation& isolation, const std::string& field) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(isolation.skip_namespace(), field + ".skip_namespace"));
    PENSTOCK_RETURN_IF_ERROR(CheckCount(isolation.only_size(), kMaxNames, field + ".only", "names"));
    SkipIsolation spec{.skip_namespace = isolation.skip_namespace()};
    for (int i = 0; i < isolation.only_size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(CheckText(isolation.only(i), absl::StrCat(field, ".only[", i, "]")));
      spec.only.push_back(isolation.only(i));
    }
    return spec;
  }

  int count_ = 0;
};

absl::StatusOr<TieSpec> Tie(const v1::TieSpec& tie, const std::string& field) {
  PENSTOCK_RETURN_IF_ERROR(CheckCount(tie.parameters_size(), kMaxTied, field + ".parameters", "names"));
  TieSpec spec;
  for (int i = 0; i < tie.parameters_size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckText(tie.parameters(i), absl::StrCat(field, ".parameters[", i, "]")));
    spec.parameters.push_back(tie.parameters(i));
  }
  return spec;
}

void SetLayer(const LayerSpec& layer, v1::LayerSpec* message) {
  message->set_kind(layer.kind);
  message->set_name(layer.name);
  WriteOptions(layer.options, message->mutable_options());
  message->set_device(layer.device);
  for (const SkipIsolation& isolation : layer.isolate) {
    v1::SkipIsolation* added = message->add_isolate();
    added->set_skip_namespace(isolation.skip_namespace);
    for (const std::string& name : isolation.only) added->add_only(name);
  }
  for (const LayerSpec& inner : layer.layers) SetLayer(inner, message->add_layers());
}

v1::TensorSignature ToProto(const TensorSignature& signature) {
  v1::TensorSignature message;
  message.set_name(signature.name);
  message.set_any(signature.any);
  if (signature.any) return message;
  message.set_type(static_cast<v1::DataType>(signature.type));
  for (int64_t dimension : signature.shape) message.add_shape(dimension);
  return message;
}

}  // namespace

absl::StatusOr<ModelSpec> FromProto(const v1::ModelSpec& model, const std::string& field) {
  ModelSpec spec;
  PENSTOCK_RETURN_IF_ERROR(CheckText(model.name(), field + ".name"));
  spec.name = model.name();
  PENSTOCK_ASSIGN_OR_RETURN(spec.options, ReadOptions(model.options(), field + ".options"));
  LayerReader reader;
  PENSTOCK_ASSIGN_OR_RETURN(spec.layers, reader.Layers(model.layers(), field + ".layers", 0));
  PENSTOCK_RETURN_IF_ERROR(CheckCount(model.ties_size(), kMaxTied, field + ".ties", "entries"));
  for (int i = 0; i < model.ties_size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(TieSpec tie, Tie(model.ties(i), absl::StrCat(field, ".ties[", i, "]")));
    spec.ties.push_back(std::move(tie));
  }
  PENSTOCK_RETURN_IF_ERROR(
      CheckCount(std::ssize(model.layer_devices()), kMaxPlaced, field + ".layer_devices", "entries"));
  for (const auto& [name, device] : model.layer_devices()) {
    const std::string entry = absl::StrCat(field, ".layer_devices[", Shortened(name), "]");
    PENSTOCK_RETURN_IF_ERROR(CheckText(name, entry));
    PENSTOCK_RETURN_IF_ERROR(CheckText(device, entry));
    spec.layer_devices.emplace(name, device);
  }
  spec.deferred_batch_norm = model.deferred_batch_norm();
  spec.tuple_as_one_argument = model.tuple_as_one_argument();
  PENSTOCK_RETURN_IF_ERROR(CheckText(model.dtype(), field + ".dtype"));
  spec.dtype = model.dtype();
  PENSTOCK_RETURN_IF_ERROR(CheckText(model.autocast(), field + ".autocast"));
  spec.autocast = model.autocast();
  PENSTOCK_RETURN_IF_ERROR(CheckText(model.program(), field + ".program"));
  spec.program = model.program();
  if (!v1::ProgramCuts_IsValid(model.program_cuts())) {
    return SpecInvalid(field + ".program_cuts", "must be MODULES or NODES",
                       absl::StrCat(static_cast<int>(model.program_cuts())));
  }
  if (model.program_cuts() == v1::PROGRAM_CUTS_NODES) spec.program_cuts = ProgramCuts::kNodes;
  PENSTOCK_RETURN_IF_ERROR(CheckText(model.program_digest(), field + ".program_digest"));
  spec.program_digest = model.program_digest();
  if (spec.program.empty() && !spec.program_digest.empty()) {
    return SpecInvalid(field + ".program_digest", "belongs to a program", Shortened(spec.program_digest));
  }
  return spec;
}

v1::ModelSpec ToProto(const ModelSpec& spec) {
  v1::ModelSpec message;
  message.set_name(spec.name);
  WriteOptions(spec.options, message.mutable_options());
  for (const LayerSpec& layer : spec.layers) SetLayer(layer, message.add_layers());
  for (const TieSpec& tie : spec.ties) {
    v1::TieSpec* added = message.add_ties();
    for (const std::string& parameter : tie.parameters) added->add_parameters(parameter);
  }
  message.mutable_layer_devices()->insert(spec.layer_devices.begin(), spec.layer_devices.end());
  message.set_deferred_batch_norm(spec.deferred_batch_norm);
  message.set_tuple_as_one_argument(spec.tuple_as_one_argument);
  message.set_dtype(spec.dtype);
  message.set_autocast(spec.autocast);
  if (spec.program.empty()) return message;
  message.set_program(spec.program);
  const bool nodes = spec.program_cuts == ProgramCuts::kNodes;
  message.set_program_cuts(nodes ? v1::PROGRAM_CUTS_NODES : v1::PROGRAM_CUTS_MODULES);
  message.set_program_digest(spec.program_digest);
  return message;
}

v1::ModelSignature ToProto(const ModelSignature& signature) {
  v1::ModelSignature message;
  for (const auto& tensor : signature.inputs) *message.add_inputs() = ToProto(tensor);
  for (const auto& tensor : signature.outputs) *message.add_outputs() = ToProto(tensor);
  for (const auto& tensor : signature.targets) *message.add_targets() = ToProto(tensor);
  return message;
}

}  // namespace penstock
