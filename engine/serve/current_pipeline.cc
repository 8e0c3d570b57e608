#include "engine/serve/current_pipeline.h"

#include <utility>

namespace penstock {

CurrentPipeline::Prepared CurrentPipeline::Prepare(std::unique_ptr<Pipeline> next) {
  Prepared prepared{.gone = std::make_shared<absl::Notification>()};
  prepared.facts.push_back({next->plan(), next->signature()});
  prepared.pipeline = std::shared_ptr<Pipeline>(next.release(), [gone = prepared.gone](Pipeline* pipeline) {
    delete pipeline;
    gone->Notify();
  });
  return prepared;
}

CurrentPipeline::Prepared CurrentPipeline::Replace(Prepared next) noexcept {
  absl::MutexLock lock(&mu_);
  facts_.splice(facts_.end(), next.facts);
  std::swap(standing_.pipeline, next.pipeline);
  std::swap(standing_.gone, next.gone);
  return next;
}

}  // namespace penstock
