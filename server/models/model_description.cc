#include "server/models/model_description.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_signature.h"
#include "engine/program/program_model.h"
#include "engine/program/program_parts.h"

namespace penstock {
namespace {

void CountOperators(const ProgramGraph& graph, ModelDescription& description) {
  description.nodes += static_cast<int>(graph.nodes.size());
  for (const ProgramNode& node : graph.nodes) {
    ++description.operators[std::string(absl::StripPrefix(node.target, "torch.ops."))];
  }
}

void CountTensors(const ExportedProgram& program, ModelDescription& description) {
  for (const ProgramTensor& tensor : program.tensors) {
    if (tensor.same_as >= 0) {
      if (tensor.persistent) description.tied_names[tensor.name] = program.tensors[tensor.same_as].name;
      continue;
    }
    int64_t numbers = 1;
    for (const int64_t size : tensor.sizes) numbers *= size;
    if (tensor.kind == ProgramTensor::Kind::kParameter) {
      description.parameters += numbers;
      description.parameter_bytes += tensor.element_bytes();
    } else if (tensor.kind == ProgramTensor::Kind::kBuffer && tensor.persistent) {
      description.buffer_bytes += tensor.element_bytes();
    }
  }
}

std::vector<ModelDescription::Dimension> DimensionsOf(const ProgramGraph& graph) {
  std::vector<ModelDescription::Dimension> dimensions;
  for (const auto& [symbol, range] : graph.symbols) {
    ModelDescription::Dimension dimension{.name = symbol, .range = range, .inputs = {}};
    for (const ProgramInput& input : graph.inputs) {
      for (size_t d = 0; d < input.shape.size(); ++d) {
        if (input.shape[d].symbol == symbol) dimension.inputs.push_back(absl::StrCat(input.name, "[", d, "]"));
      }
    }
    if (!dimension.inputs.empty()) dimensions.push_back(std::move(dimension));
  }
  return dimensions;
}

// Layers as a pipeline would build them, without memory: so everything that building refuses is found, too.
absl::Status DescribeLayers(const ProgramModel& model, ModelDescription& description) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<NamedLayer> layers, BuildProgramLayers(model, {.shapes_only = true}));
  PENSTOCK_ASSIGN_OR_RETURN(description.signature, SignatureOf(layers, nullptr));
  std::set<std::string> copies;
  for (const TieSpec& tie : model.ties()) copies.insert(tie.parameters.begin() + 1, tie.parameters.end());
  for (int i = 0; i < model.size(); ++i) {
    ModelDescription::LayerInfo layer{.name = model.name(i), .module = model.module(i)};
    for (const NamedTensor& parameter : layers[i].layer->parameters()) {
      if (copies.count(parameter.name) == 0) layer.parameters += parameter.tensor.numel();
    }
    description.layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelDescription> DescribeProgram(std::string bytes, const ProgramLimits& limits) {
  ModelDescription description;
  PENSTOCK_ASSIGN_OR_RETURN(ExportedProgram program,
                            ReadExportedProgram(std::make_shared<const std::string>(std::move(bytes)), limits));
  CountOperators(program.graph, description);
  if (program.training.has_value()) CountOperators(*program.training, description);
  CountTensors(program, description);
  description.dimensions = DimensionsOf(program.graph);
  PENSTOCK_ASSIGN_OR_RETURN(const ResolvedGraph resolved, ResolveGraph(program, program.graph));
  description.training_graph = program.training.has_value() || resolved.trains;
  description.evaluation_graph = program.training.has_value() || !resolved.trains;
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const ProgramModel> model, ProgramModel::Create(std::move(program)));
  PENSTOCK_RETURN_IF_ERROR(DescribeLayers(*model, description));
  return description;
}

}  // namespace penstock
