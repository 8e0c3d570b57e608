#pragma once

// Takes spans from calls and hands them to one sink, in the background.

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/observe/span_counters.h"
#include "server/tracing/span.h"
#include "server/tracing/span_sink.h"

namespace penstock {

// Queues ended spans, and sends them in batches on a thread of its own.
//
// Model:     a queue with an end: a span that finds it full is dropped and counted, so that a call never waits for a
//            collector. A batch goes when it is whole, or its first span has waited for `max_delay`. One that the sink
//            does not take is counted as failed and not sent again.
// Owns:      the sink and the thread. Counters and clock outlive it.
// Threads:   Add() from any; Close() from one.
// Lifecycle: Close() sends what is queued, for at most `flush`, and counts the rest as dropped; later spans are
//            dropped. The destructor closes.
// Fails:     never; the first failure after a success is logged, and the first success after failures.
class SpanExporter {
 public:
  struct Options {
    std::string target;  // for log lines
    SpanAttributes resource;
    std::string version;
    size_t queue_spans = 4096;
    size_t batch_spans = 512;
    absl::Duration max_delay = absl::Seconds(1);
    absl::Duration flush = absl::Seconds(2);
  };

  SpanExporter(std::unique_ptr<SpanSink> sink, Options options, SpanCounters* counters, Clock* clock);
  ~SpanExporter() { Close(); }

  void Add(Span span) ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void NextBatch(std::vector<Span>& batch) ABSL_LOCKS_EXCLUDED(mu_);
  void Send(const std::vector<Span>& batch);

  const std::unique_ptr<SpanSink> sink_;
  const Options options_;
  SpanCounters* const counters_;
  Clock* const clock_;
  std::atomic<int64_t> give_up_nanos_;
  bool failing_ = false;  // of the thread

  absl::Mutex mu_;
  std::deque<Span> queue_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;

  std::optional<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
