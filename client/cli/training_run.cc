#include "client/cli/training_run.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kStepsPerRelease = 16;
constexpr absl::Duration kLongestStep = absl::Hours(1);
constexpr int64_t kOutcomeLeaseSeconds = 600;  // an outcome waits while its client is away

}  // namespace

absl::Status TrainingRun::Run(const OnStep& on_step) {
  int64_t submitted = 0;
  for (int64_t number = 1; number <= options_.steps; ++number) {
    while (submitted < options_.steps && static_cast<int>(open_.size()) < options_.in_flight) {
      PENSTOCK_RETURN_IF_ERROR(Submit(submitted++));
    }
    PENSTOCK_ASSIGN_OR_RETURN(const v1::Handle handle, client_.AwaitHandle(open_.front(), kLongestStep));
    finished_.push_back(std::move(open_.front()));
    open_.pop_front();
    on_step(number, handle.outcome());
    if (finished_.size() >= kStepsPerRelease) PENSTOCK_RETURN_IF_ERROR(ReleaseFinished());
  }
  return ReleaseFinished();
}

absl::Status TrainingRun::Submit(int64_t number) {
  PENSTOCK_ASSIGN_OR_RETURN(const Batch batch, batches_(options_.first_batch + number));
  v1::TrainStepRequest request;
  request.set_pipeline(options_.pipeline);
  SetBatch(batch, &request);
  request.mutable_reply()->mutable_lease()->set_seconds(kOutcomeLeaseSeconds);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::TrainStepResponse response, client_.TrainStep(std::move(request)));
  open_.push_back(response.outcome().handle().name());
  return absl::OkStatus();
}

absl::Status TrainingRun::ReleaseFinished() {
  if (finished_.empty()) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(client_.ReleaseHandles(finished_).status());
  finished_.clear();
  return absl::OkStatus();
}

void TrainingRun::CleanUp(PipelineClient& client) {
  std::vector<std::string> left(open_.begin(), open_.end());
  if (!left.empty()) client.CancelHandles(left).status().IgnoreError();
  left.insert(left.end(), finished_.begin(), finished_.end());
  if (!left.empty()) client.ReleaseHandles(left).status().IgnoreError();
  open_.clear();
  finished_.clear();
}

}  // namespace penstock
