#pragma once

// The saves that the pipelines of a server make at its end.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/cancel_token.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

// What they came to.
struct LastSaves {
  std::vector<std::string> failed;     // names of pipelines
  std::vector<std::string> unemptied;  // of those whose journal still has what a checkpoint should hold
};

// Saves what has changed, or empties the journals, as ServedPipeline::SaveLast() does: one after the other, for each
// save copies a state, and each as soon as the pipeline's work has ended. Once `cancel` says so, those not saved yet have failed when their work
// ends. Calls back when all are through, on whatever thread comes last, possibly before it returns.
void SaveAllLast(std::vector<std::shared_ptr<ServedPipeline>> pipelines, ServedPipeline::LastSave save,
                 std::shared_ptr<CancelToken> cancel, std::function<void(LastSaves)> done);

}  // namespace penstock
