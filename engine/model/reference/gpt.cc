// Reference model `gpt`: a small language model, embedding, decoder blocks, head.
// Options: vocab (256, for bytes), blocks (8), width (256), heads (4), sequence (128), dropout (0).

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {

absl::StatusOr<std::vector<LayerSpec>> ExpandGpt(const OptionMap& options, const std::string& path) {
  OptionReader reader(options, path);
  const int64_t vocab = reader.Int("vocab", 256, 1, 1 << 24);
  const int64_t blocks = reader.Int("blocks", 8, 1, kMaxLayers - 2);
  const int64_t width = reader.Int("width", 256, 1, kMaxWidth);
  const int64_t heads = reader.Int("heads", 4, 1, 1024);
  const int64_t sequence = reader.Int("sequence", 128, 1, 1 << 20);
  const double dropout = reader.Double("dropout", 0, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (width % heads != 0) {
    const std::string field = absl::StrCat(path, "[heads]");
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat(field, ": must divide the width ", width, ", got ", heads))
        .With("field", field)
        .With("value", absl::StrCat(heads));
  }

  std::vector<LayerSpec> specs;
  specs.push_back({"gpt_embedding",
                   "embedding",
                   {{"vocab", vocab}, {"width", width}, {"sequence", sequence}, {"dropout", dropout}}});
  for (int64_t i = 0; i < blocks; ++i) {
    specs.push_back(
        {"gpt_block", absl::StrCat("block", i), {{"width", width}, {"heads", heads}, {"dropout", dropout}}});
  }
  specs.push_back({"gpt_head", "head", {{"width", width}, {"vocab", vocab}}});
  return specs;
}

}  // namespace penstock
