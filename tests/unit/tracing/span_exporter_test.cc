#include "server/tracing/span_exporter.h"

#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using testing::FakeClock;

// A sink that keeps names of spans per batch, holds Send() as long as it is told, and fails when told.
class FakeSink final : public SpanSink {
 public:
  struct State {
    absl::Mutex mu;
    std::vector<std::vector<std::string>> batches ABSL_GUARDED_BY(mu);
    bool hold ABSL_GUARDED_BY(mu) = false;
    bool fail ABSL_GUARDED_BY(mu) = false;
    bool fault ABSL_GUARDED_BY(mu) = false;  // the next one throws
    int entered ABSL_GUARDED_BY(mu) = 0;
  };
  explicit FakeSink(State* state, Clock* clock) : state_(state), clock_(clock) {}

  absl::Status Send(std::string_view json, const std::atomic<int64_t>& give_up_nanos) override {
    const nlohmann::json read = nlohmann::json::parse(json);
    std::vector<std::string> names;
    for (const auto& span : read["resourceSpans"][0]["scopeSpans"][0]["spans"]) names.push_back(span["name"]);
    absl::MutexLock lock(&state_->mu);
    ++state_->entered;
    const auto free = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !state_->hold || clock_->NowNanos() >= give_up_nanos;
    };
    clock_->AwaitUntil(&state_->mu, absl::Condition(&free), std::numeric_limits<int64_t>::max());
    if (std::exchange(state_->fault, false)) throw std::bad_alloc();
    if (state_->hold || state_->fail) return absl::UnavailableError("told to fail");
    state_->batches.push_back(std::move(names));
    return absl::OkStatus();
  }

 private:
  State* const state_;
  Clock* const clock_;
};

class SpanExporterTest : public ::testing::Test {
 protected:
  void Make(SpanExporter::Options options = {}) {
    exporter_ =
        std::make_unique<SpanExporter>(std::make_unique<FakeSink>(&sink_, &clock_), options, &counters_, &clock_);
  }
  void Add(const std::string& name) {
    Span span;
    span.name = name;
    exporter_->Add(span);
  }
  int64_t Count(SpanOutcome outcome) const { return counters_[outcome].value(); }
  template <typename Condition>
  void AwaitSink(const Condition& there) {
    absl::MutexLock lock(&sink_.mu, absl::Condition(&there));
  }
  void AwaitBatches(size_t count) {
    AwaitSink([=, this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return sink_.batches.size() >= count; });
  }
  void AwaitEntered(int count) {
    AwaitSink([=, this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return sink_.entered >= count; });
  }
  // Tells the sink what to do with the batches from now on.
  void Tell(bool FakeSink::State::*what, bool value) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    absl::MutexLock lock(&sink_.mu);
    sink_.*what = value;
  }

  FakeClock clock_;
  FakeSink::State sink_;
  SpanCounters counters_;
  std::unique_ptr<SpanExporter> exporter_;
};

TEST_F(SpanExporterTest, APartOfABatchWaitsForMoreAndGoesAfterItsDelay) {
  Make({.max_delay = absl::Seconds(1)});
  Add("a");
  clock_.AwaitWaiters(1);
  Add("b");
  clock_.Advance(absl::Seconds(1));
  AwaitBatches(1);
  absl::MutexLock lock(&sink_.mu);
  EXPECT_EQ(sink_.batches[0], (std::vector<std::string>{"a", "b"}));
}

TEST_F(SpanExporterTest, AWholeBatchGoesAtOnce) {
  Make({.batch_spans = 2});
  Add("a");
  Add("b");
  AwaitBatches(1);
}

TEST_F(SpanExporterTest, WhatFindsTheQueueFullIsDroppedAndCounted) {
  Tell(&FakeSink::State::hold, true);
  Make({.queue_spans = 3, .batch_spans = 1});
  Add("sent");
  AwaitEntered(1);
  for (int i = 0; i < 5; ++i) Add("queued or not");
  EXPECT_EQ(Count(SpanOutcome::kDropped), 2);
  Tell(&FakeSink::State::hold, false);
  AwaitBatches(4);
}

TEST_F(SpanExporterTest, WhatIsNotTakenIsCountedAndNotSentAgain) {
  Tell(&FakeSink::State::fail, true);
  Make({.batch_spans = 2});
  Add("a");
  Add("b");
  AwaitEntered(1);
  Tell(&FakeSink::State::fail, false);
  Add("c");
  Add("d");
  AwaitBatches(1);
  exporter_->Close();
  EXPECT_EQ(Count(SpanOutcome::kFailed), 2);
  EXPECT_EQ(Count(SpanOutcome::kSent), 2);
}

TEST_F(SpanExporterTest, ASinkThatThrowsLosesItsBatchAndNoOther) {
  Tell(&FakeSink::State::fault, true);
  Make({.batch_spans = 1});
  Add("lost");
  Add("sent");
  AwaitBatches(1);
  exporter_->Close();
  EXPECT_EQ(Count(SpanOutcome::kFailed), 1);
  EXPECT_EQ(Count(SpanOutcome::kSent), 1);
}

TEST_F(SpanExporterTest, ClosingSendsWhatIsQueued) {
  Make();
  Add("a");
  exporter_->Close();
  EXPECT_EQ(Count(SpanOutcome::kSent), 1);
  Add("late");
  EXPECT_EQ(Count(SpanOutcome::kDropped), 1);
}

TEST_F(SpanExporterTest, ClosingGivesUpAHangingSinkAfterTheFlush) {
  Tell(&FakeSink::State::hold, true);
  Make({.batch_spans = 1, .flush = absl::Seconds(2)});
  Add("held");
  AwaitEntered(1);
  Add("queued");
  clock_.AwaitWaiters(1);
  absl::Notification closed;
  Thread closer("closer", [&] {
    exporter_->Close();
    closed.Notify();
  });
  // The closer takes its time from the clock: move it until it has.
  while (!closed.WaitForNotificationWithTimeout(absl::Milliseconds(1))) clock_.Advance(absl::Seconds(1));
  closer.Join();
  EXPECT_EQ(Count(SpanOutcome::kFailed), 1);
  EXPECT_EQ(Count(SpanOutcome::kDropped), 1);
}

}  // namespace
}  // namespace penstock
