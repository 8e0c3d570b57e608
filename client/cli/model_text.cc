#include "client/cli/model_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/output.h"
#include "client/cli/pipeline_text.h"
#include "client/lib/durations.h"

namespace penstock {
namespace {

// "images fp32 [*, 3, 224, 224]"
std::string SignatureText(const v1::TensorSignature& tensor) {
  if (tensor.any()) return absl::StrCat(tensor.name(), " any");
  const std::string type = absl::AsciiStrToLower(absl::StripPrefix(v1::DataType_Name(tensor.type()), "DATA_TYPE_"));
  const std::string shape = absl::StrJoin(tensor.shape(), ", ", [](std::string* out, int64_t dimension) {
    absl::StrAppend(out, dimension < 0 ? "*" : absl::StrCat(dimension));
  });
  return absl::StrCat(tensor.name(), " ", type, " [", shape, "]");
}

std::string SignaturesText(const google::protobuf::RepeatedPtrField<v1::TensorSignature>& tensors) {
  return absl::StrJoin(tensors, "; ", [](std::string* out, const v1::TensorSignature& tensor) {
    absl::StrAppend(out, SignatureText(tensor));
  });
}

std::string ModesText(const v1::Model& model) {
  if (model.evaluation_graph() && model.training_graph()) return "both";
  return model.training_graph() ? "training" : "evaluation";
}

// "1 to 4,096" of the first dimension of the first input.
std::string BatchText(const v1::Model& model) {
  if (model.signature().inputs().empty()) return "";
  const std::string place = model.signature().inputs(0).name() + "[0]";
  for (const v1::ModelDimension& dimension : model.dimensions()) {
    for (const std::string& input : dimension.inputs()) {
      if (input == place) return absl::StrCat(CountText(dimension.least()), " to ", CountText(dimension.most()));
    }
  }
  const auto& shape = model.signature().inputs(0).shape();
  return shape.empty() ? "" : absl::StrCat(shape[0]);
}

std::string UsersText(const v1::Model& model) {
  return absl::StrJoin(model.pipelines(), ", ",
                       [](std::string* out, const std::string& name) { absl::StrAppend(out, ShortName(name)); });
}

}  // namespace

std::string ModelListText(const std::vector<v1::Model>& models, bool wide) {
  if (models.empty()) return "no models\n";
  Table table({{"MODEL"},
               {"SIZE", true},
               {"PARAMETERS", true},
               {"NODES", true},
               {"BATCH"},
               {"GRAPHS"},
               {"PIPELINES"},
               {"CREATED", false, true},
               {"DIGEST", false, true}});
  for (const v1::Model& model : models) {
    const bool good = !model.has_error();
    table.Add({ShortName(model.name()), BytesText(static_cast<double>(model.byte_size())),
               good ? CountText(model.parameters()) : "-", good ? absl::StrCat(model.nodes()) : "-",
               good ? BatchText(model) : "-", good ? ModesText(model) : model.error().message(), UsersText(model),
               absl::FormatTime("%Y-%m-%d %H:%M:%SZ", FromMessage(model.create_time()), absl::UTCTimeZone()),
               model.digest()});
  }
  return table.Text(wide);
}

std::string ModelDetailText(const v1::Model& model, bool wide) {
  std::string text;
  absl::StrAppend(&text, "Model       ", ShortName(model.name()), "  ",
                  BytesText(static_cast<double>(model.byte_size())), "\n", "Digest      ", model.digest(), "\n");
  absl::StrAppend(&text, "Takes       ", SignaturesText(model.signature().inputs()), "\n", "Gives       ",
                  SignaturesText(model.signature().outputs()), "\n");
  for (const v1::ModelDimension& dimension : model.dimensions()) {
    absl::StrAppend(&text, "Dimension   ", absl::StrJoin(dimension.inputs(), ", "), "  ", CountText(dimension.least()),
                    " to ", CountText(dimension.most()), "\n");
  }
  absl::StrAppend(&text, "Learns      ", CountText(model.parameters()), " numbers, ",
                  BytesText(static_cast<double>(model.parameter_bytes())), "; buffers ",
                  BytesText(static_cast<double>(model.buffer_bytes())), "\n");
  absl::StrAppend(&text, "Graphs      ", ModesText(model), ", ", model.nodes(), " nodes, ", model.operators_size(),
                  " operators\n");
  if (!model.pipelines().empty()) absl::StrAppend(&text, "Pipelines   ", UsersText(model), "\n");
  Table layers({{"LAYER"}, {"MODULE"}, {"PARAMETERS", true}});
  for (const v1::ModelLayer& layer : model.layers()) {
    layers.Add({layer.name(), layer.module(), CountText(layer.parameters())});
  }
  absl::StrAppend(&text, "\n", layers.Text(false));
  if (!wide) return text;
  Table operators({{"OPERATOR"}, {"CALLS", true}});
  for (const v1::ModelOperator& one : model.operators()) operators.Add({one.name(), absl::StrCat(one.calls())});
  return absl::StrCat(text, "\n", operators.Text(false));
}

}  // namespace penstock
