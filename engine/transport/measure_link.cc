#include "engine/transport/measure_link.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace penstock {
namespace {

constexpr int kEmptyMessages = 8;
constexpr int kLeastEmptyMessages = 2;    // the first one may still connect
constexpr int kShareOfEmptyMessages = 3;  // of the budget, a third: most is for those that have bytes
constexpr int kOfEachSize = 2;            // the first one may find cold memory
constexpr int64_t kSizes[] = {64 << 10, 1 << 20, kMaximumProbeBytes};

// One echo, which may come after nobody waits for it any more.
struct Echo {
  absl::Mutex mu;
  std::optional<absl::Status> arrived ABSL_GUARDED_BY(mu);
  int64_t arrived_nanos ABSL_GUARDED_BY(mu) = 0;
};

class LinkMeasurement {
 public:
  LinkMeasurement(PeerEdges* edges, Rank peer, Clock* clock, int64_t budget_nanos)
      : edges_(edges), peer_(peer), clock_(clock), deadline_nanos_(clock->NowNanos() + budget_nanos) {}

  int64_t nanos_left() const { return deadline_nanos_ - clock_->NowNanos(); }

  // Nanoseconds there and back. Fails: DEADLINE_EXCEEDED; as the probe.
  absl::StatusOr<int64_t> RoundTrip(int64_t bytes) {
    auto echo = std::make_shared<Echo>();
    std::vector<Piece> payload;
    if (bytes > 0) payload.push_back({.data = memory_.get(), .bytes = bytes, .owner = memory_});
    const int64_t begin = clock_->NowNanos();
    edges_->Probe(peer_, std::move(payload), [echo, clock = clock_](const absl::Status& status) {
      absl::MutexLock lock(&echo->mu);
      echo->arrived = status;
      echo->arrived_nanos = clock->NowNanos();
    });
    absl::MutexLock lock(&echo->mu);
    const auto has_arrived = [&echo]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return echo->arrived.has_value(); };
    const bool arrived = clock_->AwaitUntil(&echo->mu, absl::Condition(&has_arrived), deadline_nanos_);
    if (arrived && !echo->arrived->ok()) return *echo->arrived;
    if (arrived && echo->arrived_nanos <= deadline_nanos_) return echo->arrived_nanos - begin;
    return absl::DeadlineExceededError(absl::StrCat("no echo from rank ", peer_.value(), " in time"));
  }

  // The shortest of so many, of `at_least` in any case, of more as far as they take `nanos` together.
  absl::StatusOr<int64_t> ShortestRoundTrip(int64_t bytes, int count, int at_least, int64_t nanos) {
    const int64_t end = clock_->NowNanos() + nanos;
    absl::StatusOr<int64_t> shortest = RoundTrip(bytes);
    for (int i = 1; i < count && shortest.ok(); ++i) {
      if (i >= at_least && *shortest >= end - clock_->NowNanos()) break;
      const absl::StatusOr<int64_t> next = RoundTrip(bytes);
      if (!next.ok()) break;
      shortest = std::min(*shortest, *next);
    }
    return shortest;
  }

 private:
  PeerEdges* const edges_;
  const Rank peer_;
  Clock* const clock_;
  const int64_t deadline_nanos_;
  const std::shared_ptr<char[]> memory_ = std::make_unique<char[]>(kMaximumProbeBytes);
};

// Puts into the link what a message of so many bytes that took so long says; `nanos`: there and back, without what an
// empty one takes.
void SetBandwidth(int64_t bytes, int64_t nanos, Link* link) {
  link->bytes_per_second = static_cast<double>(bytes) * 1e9 / static_cast<double>(nanos);
  link->measured = true;
}

}  // namespace

Link MeasureLink(PeerEdges* edges, Rank self, Rank peer, Clock* clock, int64_t budget_nanos) {
  Link link = {.one = std::min(self, peer), .other = std::max(self, peer)};
  LinkMeasurement measurement(edges, peer, clock, budget_nanos);
  const absl::StatusOr<int64_t> empty =
      measurement.ShortestRoundTrip(0, kEmptyMessages, kLeastEmptyMessages, budget_nanos / kShareOfEmptyMessages);
  if (!empty.ok()) {
    link.problem = std::string(empty.status().message());
    return link;
  }
  link.latency_seconds = static_cast<double>(*empty) * 0.5e-9;
  for (const int64_t bytes : kSizes) {
    const int64_t left = measurement.nanos_left();
    // As long as it would take with the bandwidth of the size before.
    const double seconds = link.measured ? static_cast<double>(bytes) / link.bytes_per_second : 0;
    if (seconds * 1e9 > static_cast<double>(left)) break;
    const absl::StatusOr<int64_t> full = measurement.ShortestRoundTrip(bytes, kOfEachSize, 1, left);
    if (full.ok()) {
      if (*full > *empty) SetBandwidth(bytes, *full - *empty, &link);
      continue;  // where it took no longer than an empty one, the next may
    }
    if (link.measured) break;
    link.problem = std::string(full.status().message());
    // One that has not come back says how fast the link is at most, if an empty one would have come back.
    if (absl::IsDeadlineExceeded(full.status()) && left > *empty) SetBandwidth(bytes, left - *empty, &link);
    break;
  }
  if (link.measured) link.problem.clear();
  if (!link.measured && link.problem.empty()) link.problem = "its bytes could not be told from its latency in time";
  return link;
}

}  // namespace penstock
