#include "server/journals.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cpu_capability.h"
#include "server/rpc/convert/recipe_convert.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Journals>> Journals::Open(const DaemonOptions& options,
                                                         const CheckpointStore* checkpoints, Clock* clock) {
  std::unique_ptr<Journals> journals(new Journals(checkpoints));
  journals->setup_ = {.folder = options.state_dir + "/journal", .records = &journals->records_, .recipe = &RecipeFrom};
  PENSTOCK_ASSIGN_OR_RETURN(journals->daemon_, DaemonJournal::Open(journals->setup_.folder, clock, {}));
  return journals;
}

std::string Journals::Fingerprint() {
  return absl::StrCat(PENSTOCK_VERSION, ", LibTorch ", PENSTOCK_TORCH_VERSION, ", ", CpuCapability());
}

}  // namespace penstock
