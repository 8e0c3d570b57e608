// Reference model `identity`: one layer that gives what it takes, any values; a model without layers, so to say. No
// options.

#include "engine/base/status_macros.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {

absl::StatusOr<std::vector<LayerSpec>> ExpandIdentity(const OptionMap& options, const std::string& path) {
  OptionReader reader(options, path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::vector<LayerSpec>{{"identity", "identity", {}}};
}

}  // namespace penstock
