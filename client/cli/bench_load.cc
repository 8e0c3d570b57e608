#include "client/cli/bench_load.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

constexpr int kStableWindows = 3;
constexpr int64_t kPollNanos = 100'000'000;  // how soon an interrupt is heard

int64_t Nanos(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

// The callers and what they have seen since the last window.
class Callers {
 public:
  Callers(const LoadOptions& options, const LoadWork& work, Clock* clock)
      : options_(options), work_(work), clock_(clock), random_(options.seed), due_nanos_(clock->NowNanos()) {}

  // Not in the constructor: where the machine has no thread left, the destructor must end those that there are.
  void Start() {
    for (int i = 0; i < options_.callers; ++i) {
      threads_.push_back(std::make_unique<Thread>(absl::StrCat("ps-bench-", i), [this] { Run(); }));
    }
  }

  ~Callers() {
    {
      absl::MutexLock lock(&mu_);
      stop_ = true;
    }
    threads_.clear();  // joins
  }

  // Waits until `nanos`; what ended since the last call.
  LoadWindow Until(int64_t nanos) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const bool never = false;
    clock_->AwaitUntil(&mu_, absl::Condition(&never), nanos);
    return std::exchange(window_, {});
  }

  absl::Status first_failure() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return first_failure_;
  }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    while (const int64_t begin = AwaitTurn()) {
      const absl::StatusOr<std::string> answer = work_.call();
      const double seconds = static_cast<double>(clock_->NowNanos() - begin) * 1e-9;
      {
        absl::MutexLock lock(&mu_);
        if (answer.ok()) {
          window_.latencies.push_back(seconds);
        } else {
          ++window_.failures;
          first_failure_.Update(answer.status());
        }
      }
      if (answer.ok()) work_.after(*answer);
    }
  }

  // When this caller's next call is due, once it is; 0: there are no more.
  int64_t AwaitTurn() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stop_) return 0;
    if (options_.rate <= 0) return clock_->NowNanos();
    const double gap = 1 / options_.rate;
    due_nanos_ += Nanos(options_.poisson ? std::exponential_distribution<double>(options_.rate)(random_) : gap);
    const int64_t due = due_nanos_;
    clock_->AwaitUntil(&mu_, absl::Condition(&stop_), due);
    return stop_ ? 0 : due;
  }

  const LoadOptions& options_;
  const LoadWork& work_;
  Clock* const clock_;

  mutable absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  int64_t due_nanos_ ABSL_GUARDED_BY(mu_);
  LoadWindow window_ ABSL_GUARDED_BY(mu_);
  absl::Status first_failure_ ABSL_GUARDED_BY(mu_);

  std::vector<std::unique_ptr<Thread>> threads_;  // last: they use all of the above
};

// Whether each value is within `share` of their mean.
bool AreNear(const std::vector<double>& values, double share) {
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  return std::all_of(values.begin(), values.end(), [&](double v) { return std::abs(v - mean) <= share * mean; });
}

LoadWindow Together(const std::vector<LoadWindow>& windows) {
  LoadWindow all;
  for (size_t i = windows.size() - std::min<size_t>(windows.size(), kStableWindows); i < windows.size(); ++i) {
    all.seconds += windows[i].seconds;
    all.failures += windows[i].failures;
    all.latencies.insert(all.latencies.end(), windows[i].latencies.begin(), windows[i].latencies.end());
  }
  std::sort(all.latencies.begin(), all.latencies.end());
  return all;
}

}  // namespace

double Percentile(const std::vector<double>& ascending, double percent) {
  if (ascending.empty()) return 0;
  const double rank = std::ceil(percent / 100 * static_cast<double>(ascending.size()));
  return ascending[static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(ascending.size()))) - 1];
}

bool IsStable(const std::vector<LoadWindow>& windows, const LoadOptions& options) {
  if (windows.size() < kStableWindows) return false;
  std::vector<double> throughputs, percentiles;
  for (size_t i = windows.size() - kStableWindows; i < windows.size(); ++i) {
    if (windows[i].latencies.empty()) return false;
    throughputs.push_back(windows[i].throughput());
    percentiles.push_back(Percentile(windows[i].latencies, options.percentile));
  }
  return AreNear(throughputs, options.stability) && AreNear(percentiles, options.stability);
}

LoadResult RunLoad(const LoadOptions& options, const LoadWork& work, Clock* clock,
                   const std::function<bool()>& stopped) {
  LoadResult result;
  std::vector<LoadWindow> windows;
  Callers callers(options, work, clock);
  callers.Start();
  // Waits for a window in pieces; returns what ended in it.
  const auto await = [&](double seconds) {
    LoadWindow window;
    const int64_t begin = clock->NowNanos();
    const int64_t end = begin + Nanos(seconds);
    // One in which nothing has ended yet goes on: it would say nothing.
    const auto is_empty = [&] { return window.latencies.empty() && window.failures == 0; };
    for (int64_t now = begin; (now < end || is_empty()) && !stopped(); now = clock->NowNanos()) {
      LoadWindow piece = callers.Until(now < end ? std::min(end, now + kPollNanos) : now + kPollNanos);
      window.failures += piece.failures;
      window.latencies.insert(window.latencies.end(), piece.latencies.begin(), piece.latencies.end());
    }
    window.seconds = static_cast<double>(clock->NowNanos() - begin) * 1e-9;
    std::sort(window.latencies.begin(), window.latencies.end());
    return window;
  };
  await(options.warm_up_seconds);
  while (static_cast<int>(windows.size()) < options.max_windows && !stopped() && !result.stable) {
    windows.push_back(await(options.window_seconds));
    result.stable = IsStable(windows, options);
  }
  result.windows = static_cast<int>(windows.size());
  result.measured = Together(windows);
  result.first_failure = callers.first_failure();
  return result;
}

}  // namespace penstock
