#pragma once

// Follows calls: decides which are traced, and makes their spans.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/observe/call_observer.h"
#include "server/tracing/span.h"

namespace penstock {

// One call from its arrival to the end of its work, which may come after its answer.
//
// Model:     a span "Recv.SERVICE.METHOD" of the RPC; below it, once the work has ended, "queue" from acceptance to
//            start and "run" from start to end. Where the call is not sampled there are ids, for errors and log lines,
//            and no spans.
// Threads:   any method from any thread. Finish() and OnEnded() come in any order; each counts once.
class RequestTrace final : public CallObserver {
 public:
  using Sender = std::function<void(Span)>;
  using RandomBytes = std::function<void(std::span<uint8_t>)>;

  struct Options {
    std::string name = {};  // of the span
    SpanAttributes attributes = {};
    TraceContext context = {};          // its own
    std::optional<SpanId> parent = {};  // the caller's
    Sender send = {};
    RandomBytes random = {};
    Clock* clock = nullptr;
  };
  explicit RequestTrace(Options options);

  const TraceContext& context() const { return options_.context; }
  std::vector<std::pair<std::string, std::string>> Ids() const override;

  // Adds an attribute to the call's span; nothing after Finish().
  void Set(std::string key, SpanValue value) ABSL_LOCKS_EXCLUDED(mu_);
  // The call was answered with a code of gRPC.
  void Finish(int code, std::string_view message) ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnded(const CallEnd& end) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Span Child(std::string name, int64_t begin_nanos, int64_t end_nanos, const SpanAttributes& attributes) const;
  int64_t ToUnix(int64_t nanos) const { return nanos + unix_offset_nanos_; }

  const Options options_;
  const int64_t begin_nanos_;
  const int64_t unix_offset_nanos_;  // one for the whole call, so that a step of the wall clock tears nothing apart

  absl::Mutex mu_;
  SpanAttributes attributes_ ABSL_GUARDED_BY(mu_);  // set during the call
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Begins the traces of calls.
//
// Model:     a call with a caller's context belongs to that trace and is sampled as it says. Any other one starts a
//            trace, sampled by `sample_ratio`, if spans are wanted at all. Which ones are sampled follows from the
//            trace's id.
// Threads:   any.
class Tracer {
 public:
  struct Options {
    bool exports = false;  // spans are wanted
    double sample_ratio = 0;
    RequestTrace::Sender send = {};         // of every sampled span; must not block
    RequestTrace::RandomBytes random = {};  // usually only tests set this
  };
  Tracer(Options options, Clock* clock);

  // The trace of a call to "/SERVICE/METHOD"; null if spans are off and the caller sends no trace.
  std::shared_ptr<RequestTrace> Begin(std::string_view path, const std::optional<TraceContext>& caller) const;

 private:
  const Options options_;
  Clock* const clock_;
};

}  // namespace penstock
