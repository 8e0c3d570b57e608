#include "server/tracing/span_exporter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/guard.h"
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

// Waits for a batch; an empty one means that there will be no other. Takes no memory but what `batch` has.
void SpanExporter::NextBatch(std::vector<Span>& batch) {
  const auto any = [this] {
    mu_.AssertReaderHeld();
    return closing_ || !queue_.empty();
  };
  const auto whole = [this] {
    mu_.AssertReaderHeld();
    return closing_ || queue_.size() >= options_.batch_spans;
  };
  batch.clear();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&any));
  const int64_t until = clock_->NowNanos() + absl::ToInt64Nanoseconds(options_.max_delay);
  clock_->AwaitUntil(&mu_, absl::Condition(&whole), until);
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.batch_spans));
  batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
}

void SpanExporter::Run() {
  std::vector<Span> batch;
  batch.reserve(options_.batch_spans);
  while (true) {
    NextBatch(batch);
    if (batch.empty()) return;
    const auto count = static_cast<int64_t>(batch.size());
    if (clock_->NowNanos() >= give_up_nanos_) {
      (*counters_)[SpanOutcome::kDropped].Add(count);
    } else if (!Guarded("the export of spans", [&] { Send(batch); }).ok()) {
      (*counters_)[SpanOutcome::kFailed].Add(count);
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
