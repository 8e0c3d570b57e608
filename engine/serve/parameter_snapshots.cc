#include "engine/serve/parameter_snapshots.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

struct ParameterSnapshots::Alive {
  using Key = std::pair<int64_t, ReadContent>;  // version, and what of

  absl::Mutex mu;
  int64_t bytes ABSL_GUARDED_BY(mu) = 0;
  std::map<Key, std::weak_ptr<const ParameterSnapshot>> copies ABSL_GUARDED_BY(mu);
};

ParameterSnapshots::ParameterSnapshots() : alive_(std::make_shared<Alive>()) {}

int64_t ParameterSnapshots::bytes() const {
  absl::MutexLock lock(&alive_->mu);
  return alive_->bytes;
}

absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> ParameterSnapshots::Take(int64_t version, ReadContent content,
                                                                                  const Make& make) const {
  const Alive::Key key = {version, content};
  {
    absl::MutexLock lock(&alive_->mu);
    if (const auto found = alive_->copies.find(key); found != alive_->copies.end()) {
      if (auto copy = found->second.lock(); copy != nullptr) return copy;
    }
    if (alive_->copies.size() >= kMaxSnapshots) {
      return Error(absl::StatusCode::kResourceExhausted, "STREAM_LIMIT",
                   absl::StrCat("at most ", kMaxSnapshots, " copies of the parameters may be read at once"))
          .With("limit", "parameter_snapshots")
          .With("limit_value", absl::StrCat(kMaxSnapshots))
          .With("retry_after_ms", "1000");
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(ParameterSnapshot fresh, make());
  auto made = std::make_unique<ParameterSnapshot>(std::move(fresh));
  const int64_t bytes = ByteSize(made->tensors);
  const auto end = [alive = alive_, key, bytes](const ParameterSnapshot* last) {
    delete last;
    absl::MutexLock lock(&alive->mu);
    alive->bytes -= bytes;
    const auto found = alive->copies.find(key);
    if (found != alive->copies.end() && found->second.expired()) alive->copies.erase(found);  // else there is a new one
  };
  const std::shared_ptr<const ParameterSnapshot> copy(made.release(), end);
  absl::MutexLock lock(&alive_->mu);
  alive_->bytes += bytes;
  alive_->copies[key] = copy;
  return copy;
}

}  // namespace penstock
