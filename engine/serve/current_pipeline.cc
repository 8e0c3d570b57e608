#include "engine/serve/current_pipeline.h"

#include <utility>

namespace penstock {

std::shared_ptr<Pipeline> CurrentPipeline::Replace(std::shared_ptr<Pipeline> next) {
  Facts facts{next->plan(), next->signature()};
  absl::MutexLock lock(&mu_);
  facts_.push_back(std::move(facts));
  now_.swap(next);
  return next;
}

}  // namespace penstock
