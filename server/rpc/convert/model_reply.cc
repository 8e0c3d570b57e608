#include "server/rpc/convert/model_reply.h"

#include <string>

#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {

v1::Model ToProto(const ModelDescription& model, const ModelRoot& root, bool layers) {
  v1::Model message;
  message.set_name(kModelPrefix + model.name);
  message.set_byte_size(model.bytes);
  *message.mutable_create_time() = ToTimestamp(model.changed);
  if (!model.error.ok()) {
    *message.mutable_error() = ToRpcStatus(model.error);
    return message;
  }
  message.set_digest(model.digest);
  *message.mutable_signature() = ToProto(model.signature);
  for (const ModelDescription::Dimension& dimension : model.dimensions) {
    v1::ModelDimension* added = message.add_dimensions();
    added->set_name(dimension.name);
    added->set_least(dimension.range.least);
    added->set_most(dimension.range.most);
    for (const std::string& input : dimension.inputs) added->add_inputs(input);
  }
  message.set_parameters(model.parameters);
  message.set_parameter_bytes(model.parameter_bytes);
  message.set_buffer_bytes(model.buffer_bytes);
  message.set_nodes(model.nodes);
  for (const auto& [name, calls] : model.operators) {
    v1::ModelOperator* added = message.add_operators();
    added->set_name(name);
    added->set_calls(calls);
  }
  for (const ModelDescription::LayerInfo& layer : model.layers) {
    if (!layers) break;
    v1::ModelLayer* added = message.add_layers();
    added->set_name(layer.name);
    added->set_module(layer.module);
    added->set_parameters(layer.parameters);
  }
  if (layers) message.mutable_tied_names()->insert(model.tied_names.begin(), model.tied_names.end());
  message.set_evaluation_graph(model.evaluation_graph);
  message.set_training_graph(model.training_graph);
  if (root.options().users) {
    for (const std::string& pipeline : root.options().users(model.name)) message.add_pipelines("pipelines/" + pipeline);
  }
  return message;
}

}  // namespace penstock
