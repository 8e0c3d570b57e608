#include "server/tracing/span_exporter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/log.h"
#include "server/tracing/otlp_json.h"

namespace penstock {

SpanExporter::SpanExporter(std::unique_ptr<SpanSink> sink, Options options, SpanCounters* counters, Clock* clock)
    : sink_(std::move(sink)),
      options_(std::move(options)),
      counters_(counters),
      clock_(clock),
      give_up_nanos_(std::numeric_limits<int64_t>::max()) {
  thread_.emplace("ps-spans", [this] { Run(); });
}

void SpanExporter::Add(Span span) {
  {
    absl::MutexLock lock(&mu_);
    if (!closing_ && queue_.size() < options_.queue_spans) {
      queue_.push_back(std::move(span));
      return;
    }
  }
  (*counters_)[SpanOutcome::kDropped].Add();
}

void SpanExporter::Close() {
  if (!thread_.has_value()) return;
  give_up_nanos_ = clock_->NowNanos() + absl::ToInt64Nanoseconds(options_.flush);
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  thread_->Join();
  thread_.reset();
}

// Waits for a batch; an empty one means that there will be no other.
std::vector<Span> SpanExporter::NextBatch() {
  const auto any = [this] {
    mu_.AssertReaderHeld();
    return closing_ || !queue_.empty();
  };
  const auto whole = [this] {
    mu_.AssertReaderHeld();
    return closing_ || queue_.size() >= options_.batch_spans;
  };
  std::vector<Span> batch;
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&any));
  const int64_t until = clock_->NowNanos() + absl::ToInt64Nanoseconds(options_.max_delay);
  clock_->AwaitUntil(&mu_, absl::Condition(&whole), until);
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.batch_spans));
  batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  return batch;
}

void SpanExporter::Run() {
  while (true) {
    const std::vector<Span> batch = NextBatch();
    if (batch.empty()) return;
    if (clock_->NowNanos() < give_up_nanos_) {
      Send(batch);
    } else {
      (*counters_)[SpanOutcome::kDropped].Add(static_cast<int64_t>(batch.size()));
    }
  }
}

void SpanExporter::Send(const std::vector<Span>& batch) {
  const absl::Status sent = sink_->Send(ToOtlpJson(options_.resource, options_.version, batch), give_up_nanos_);
  (*counters_)[sent.ok() ? SpanOutcome::kSent : SpanOutcome::kFailed].Add(static_cast<int64_t>(batch.size()));
  if (sent.ok() && failing_) LogInfo("spans are taken again", {{"target", options_.target}});
  if (!sent.ok() && !failing_) {
    LogWarning("spans are lost", {{"target", options_.target}, {"problem", std::string(sent.message())}});
  }
  failing_ = !sent.ok();
}

}  // namespace penstock
