// Layer kind `exported_program`: one layer of an exported program. It stands in specifications that ExpandModel made.
// Options: layer, its position.

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/layer_source.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Layer>> MakeExportedProgramLayer(const LayerRequest& request) {
  if (request.program == nullptr) {
    return Error(
               absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat(request.path, ": an exported program is named by spec.model.program, got exported_program"))
        .With("field", request.path)
        .With("value", "exported_program");
  }
  OptionReader reader(request.options, request.path);
  const int64_t layer = reader.NeededInt("layer", 0, request.program->size() - 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return request.program->Build(static_cast<int>(layer), {.shapes_only = request.shapes_only,
                                                          .deferred_batch_norm = request.deferred_batch_norm});
}

}  // namespace penstock
