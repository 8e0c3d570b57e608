#include "engine/store/parameter_snapshots.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/observe/metrics.h"

namespace penstock {

struct ParameterSnapshots::Alive {
  using Key = std::pair<int64_t, bool>;  // version, with the optimizer's state

  explicit Alive(std::shared_ptr<PipelineMetrics> metrics) : metrics(std::move(metrics)) {}

  void Count(int64_t bytes) const {
    if (metrics != nullptr) metrics->snapshot_bytes.Add(static_cast<double>(bytes));
  }

  const std::shared_ptr<PipelineMetrics> metrics;

  absl::Mutex mu;
  std::map<Key, std::weak_ptr<const ParameterSnapshot>> copies ABSL_GUARDED_BY(mu);
};

ParameterSnapshots::ParameterSnapshots(std::shared_ptr<PipelineMetrics> metrics)
    : alive_(std::make_shared<Alive>(std::move(metrics))) {}

absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> ParameterSnapshots::Take(int64_t version, bool with_optimizer,
                                                                                  const Make& make) {
  const Alive::Key key = {version, with_optimizer};
  {
    absl::MutexLock lock(&alive_->mu);
    if (const auto found = alive_->copies.find(key); found != alive_->copies.end()) {
      if (auto copy = found->second.lock(); copy != nullptr) return copy;
    }
    if (alive_->copies.size() >= kMostSnapshots) {
      return Error(absl::StatusCode::kResourceExhausted, "STREAM_LIMIT",
                   absl::StrCat("at most ", kMostSnapshots, " copies of the parameters may be read at once"))
          .With("limit", "parameter_snapshots")
          .With("limit_value", absl::StrCat(kMostSnapshots))
          .With("retry_after_ms", "1000");
    }
  }
  auto made = std::make_unique<ParameterSnapshot>(make());
  const int64_t bytes = ByteSize(made->tensors);
  alive_->Count(bytes);
  std::shared_ptr<const ParameterSnapshot> copy(
      made.release(), [alive = alive_, key, bytes](const ParameterSnapshot* last) {
        delete last;
        alive->Count(-bytes);
        absl::MutexLock lock(&alive->mu);
        const auto found = alive->copies.find(key);
        const bool gone = found != alive->copies.end() && found->second.expired();
        if (gone) alive->copies.erase(found);  // else there is a new one
      });
  absl::MutexLock lock(&alive_->mu);
  alive_->copies[key] = copy;
  return copy;
}

}  // namespace penstock
