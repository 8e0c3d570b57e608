// Reference model `mlp`: equal blocks of linear, ReLU and dropout. Options: layers (16), width (1024), dropout (0).

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {

absl::StatusOr<std::vector<LayerSpec>> ExpandMlp(const OptionMap& options, const std::string& path) {
  OptionReader reader(options, path);
  const int64_t layers = reader.Int("layers", 16, 1, kMaxLayers);
  const int64_t width = reader.Int("width", 1024, 1, kMaxWidth);
  const double dropout = reader.Double("dropout", 0, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  std::vector<LayerSpec> specs;
  for (int64_t i = 0; i < layers; ++i) {
    specs.push_back({"mlp_block", absl::StrCat("block", i), {{"width", width}, {"dropout", dropout}}});
  }
  return specs;
}

}  // namespace penstock
