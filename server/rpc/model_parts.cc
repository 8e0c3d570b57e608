#include "server/rpc/model_parts.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

absl::Status CheckModelsEnabled(const ModelParts& parts, bool changes) {
  const char* flag = !parts.root->exists()                 ? "--model-root"
                     : changes && parts.uploads == nullptr ? "--allow-model-upload"
                                                           : nullptr;
  if (flag == nullptr) return absl::OkStatus();
  return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
               absl::StrCat("this daemon was started without ", flag))
      .With("field", flag)
      .With("value", "off");
}

}  // namespace penstock
