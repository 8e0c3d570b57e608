#include "client/cli/bench_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/bench_calls.h"
#include "client/cli/lane_bars.h"
#include "client/cli/output.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kHandlesPerRelease = 32;

}  // namespace

absl::Status PipelineTarget::Begin() {
  PENSTOCK_ASSIGN_OR_RETURN(before_, client_->Statistics(pipeline()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> PipelineTarget::Call() {
  const int64_t begin = session_->clock()->NowNanos();
  v1::Handle handle;
  if (train_.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::TrainStepResponse response, client_->TrainStep(*train_));
    handle = response.outcome().handle();
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::InferResponse response, client_->Infer(*infer_));
    handle = response.outputs().handle();
  }
  if (handle.state() != v1::HANDLE_STATE_READY) {
    const absl::Duration gone = absl::Nanoseconds(session_->clock()->NowNanos() - begin);
    absl::StatusOr<v1::Handle> ready =
        client_->AwaitHandle(handle.name(), std::max(absl::ZeroDuration(), PatienceOf(*session_) - gone));
    if (!ready.ok()) {
      After(handle.name());
      return ready.status();
    }
    handle = *std::move(ready);
  }
  absl::MutexLock lock(&mu_);
  compute_seconds_ += handle.outcome().seconds();
  ++computed_;
  return handle.name();
}

void PipelineTarget::After(const std::string& result) {
  {
    absl::MutexLock lock(&mu_);
    handles_.push_back(result);
    if (handles_.size() < kHandlesPerRelease) return;
  }
  Release(client_);
}

void PipelineTarget::Release(PipelineClient* client) {
  std::vector<std::string> handles;
  {
    absl::MutexLock lock(&mu_);
    handles.swap(handles_);
  }
  if (!handles.empty()) client->ReleaseHandles(handles).status().IgnoreError();
}

void PipelineTarget::Interrupted() {
  if (const auto last = session_->LastClient(); last.ok()) Release(last->get());
}

double PipelineTarget::TakeMeanCompute() {
  absl::MutexLock lock(&mu_);
  const double mean = computed_ > 0 ? compute_seconds_ / static_cast<double>(computed_) : 0;
  compute_seconds_ = 0;
  computed_ = 0;
  return mean;
}

absl::StatusOr<std::vector<ServerFigure>> PipelineTarget::End() {
  Release(client_);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics after, client_->Statistics(pipeline()));
  const std::vector<LaneShares> lanes = SharesBetween(before_, after);
  double busy = 0;
  for (const LaneShares& lane : lanes) busy += lane.busy() / static_cast<double>(lanes.size());
  const bool train = train_.has_value();
  const int64_t depth = train ? after.train_queue_depth() : after.infer_queue_depth();
  const std::string queue = train ? "train_queue_depth" : "infer_queue_depth";
  std::vector<ServerFigure> figures = {
      {"busy", busy, "busy", NumberText(busy, 4), "LANES BUSY", PercentText(busy)},
      {queue, static_cast<double>(depth), queue, absl::StrCat(depth), "QUEUED", absl::StrCat(depth)}};
  if (train) {
    const double compute = TakeMeanCompute();
    const std::string text = NumberText(compute * 1e3, 2);
    figures.push_back({"compute_seconds", compute, "compute_ms", text, "COMPUTE MS", text});
  }
  return figures;
}

}  // namespace penstock
