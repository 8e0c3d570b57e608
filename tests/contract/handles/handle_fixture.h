#pragma once

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/metrics.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A producer that does as told and remembers what it was told.
class PuppetProducer : public HandleProducer {
 public:
  explicit PuppetProducer(CancelEffect effect) : effect_(effect) {}
  CancelEffect RequestCancel() override {
    ++cancels;
    return effect_;
  }
  void Abandon(const HandleId&) override { ++abandons; }
  std::atomic<int> cancels = 0;
  std::atomic<int> abandons = 0;

 private:
  const CancelEffect effect_;
};

// A store with a clock that stands still, and one caller named "ann".
class HandleFixture : public ::testing::Test {
 protected:
  explicit HandleFixture(HandleStore::Options options = {}) {
    options.epoch = Epoch(7);
    options.metrics = &metrics_;
    timers_ = std::make_unique<TimerQueue>(&clock_);
    store_ = std::make_unique<HandleStore>(std::move(options), &clock_, timers_.get());
  }
  ~HandleFixture() override { store_.reset(); }

  static NamedTensors Tensors(int64_t elements = 4) { return {{"y", at::full({elements}, 1.5f)}}; }

  HandleName Reserve(HandleKind kind = HandleKind::kValue, std::shared_ptr<HandleProducer> producer = nullptr) {
    absl::StatusOr<HandleName> name = store_->Reserve(
        {.owner = "ann", .pipeline = "gpt", .kind = kind, .method = "Infer", .producer = std::move(producer)});
    EXPECT_TRUE(name.ok()) << name.status();
    return *name;
  }
  HandleName Ready() {
    const HandleName name = Reserve();
    store_->Fulfil(name.id, Tensors());
    return name;
  }
  // The reason why a handle can't be had, or "" if it can.
  std::string ReasonOfGet(const HandleName& name, const std::string& caller = "ann") {
    return ReasonOf(store_->Get(caller, name).status());
  }
  HandleState StateOf(const HandleName& name) {
    absl::StatusOr<HandleInfo> info = store_->Get("ann", name);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->state : HandleState::kReleased;
  }
  void Advance(absl::Duration time) {
    clock_.Advance(time);
    timers_->SettleForTest();
  }

  FakeClock clock_;
  ServerMetrics metrics_;
  std::unique_ptr<TimerQueue> timers_;
  std::unique_ptr<HandleStore> store_;
};

}  // namespace penstock::testing
