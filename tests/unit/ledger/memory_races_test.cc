#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "engine/ledger/memory_ledger.h"

namespace penstock {
namespace {

// Of two that each fit alone exactly one gets it, whatever the order.
TEST(MemoryRaces, ExactlyOneOfTwoWinsTheRest) {
  for (int round = 0; round < 200; ++round) {
    MemoryLedger ledger(100);
    std::vector<MemoryReservation> got(2);
    std::atomic<int> waiting = 2;
    std::vector<std::unique_ptr<Thread>> callers;
    for (int i = 0; i < 2; ++i) {
      callers.push_back(std::make_unique<Thread>("caller", [&, i] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        auto taken = ledger.Take({MemoryClass::kPipelines, "ann", absl::StrCat("p", i)}, 60);
        if (taken.ok()) got[i] = *std::move(taken);
      }));
    }
    for (const auto& caller : callers) caller->Join();
    ASSERT_NE(got[0].bytes() == 0, got[1].bytes() == 0);
    ASSERT_EQ(ledger.bytes(), 60);
  }
}

// Whatever many threads take, resize, move, pass on and refuse, the sums stay within the limits and end at nothing.
TEST(MemoryRaces, ManyThreadsNeverPassTheLimitAndLeaveNothing) {
  constexpr int64_t kLimit = 10'000;
  const MemoryPool pool = {.classes = {MemoryClass::kHandles, MemoryClass::kUploads},
                           .flag = "handle-bytes",
                           .limit_bytes = kLimit / 2,
                           .kept_bytes = kLimit / 4};
  std::atomic<int64_t> refusals = 0;
  MemoryLedger ledger({.limit_bytes = kLimit, .pools = {pool}, .refused = [&](MemoryClass) { ++refusals; }});
  std::atomic<bool> over = false;
  const auto watch = std::make_unique<Thread>("watch", [&] {
    while (!over) {
      const MemoryLedger::Statement state = ledger.State();
      EXPECT_LE(state.bytes, kLimit);
      int64_t sum = 0;
      for (const MemoryLedger::ClassUse& use : state.classes) sum += use.bytes;
      EXPECT_EQ(sum, state.bytes);
      std::this_thread::yield();
    }
  });
  std::vector<std::unique_ptr<Thread>> callers;
  for (int i = 0; i < 8; ++i) {
    callers.push_back(std::make_unique<Thread>("caller", [&ledger, i] {
      std::mt19937 random(i);
      std::vector<MemoryReservation> held;
      for (int turn = 0; turn < 2000; ++turn) {
        const int64_t bytes = random() % 900;
        const auto kind = static_cast<MemoryClass>(random() % kMemoryClasses);
        auto taken = ledger.Take({kind, absl::StrCat("caller", i % 3), absl::StrCat("p", random() % 3)}, bytes);
        if (taken.ok()) held.push_back(*std::move(taken));
        if (held.empty()) continue;
        MemoryReservation& one = held[random() % held.size()];
        switch (random() % 4) {
          case 0:
            one.Resize(bytes).IgnoreError();
            break;
          case 1:
            one.ShrinkTo(bytes);
            break;
          case 2:
            one.Become(MemoryClass::kHandles).IgnoreError();
            break;
          default:
            std::swap(one, held.back());
            held.pop_back();
        }
      }
    }));
  }
  for (const auto& caller : callers) caller->Join();
  over = true;
  watch->Join();
  EXPECT_GT(refusals, 0);
  const MemoryLedger::Statement state = ledger.State();
  EXPECT_EQ(state.bytes, 0);
  EXPECT_TRUE(state.holders.empty());
  for (const MemoryLedger::ClassUse& use : state.classes) EXPECT_EQ(use.reservations, 0);
}

}  // namespace
}  // namespace penstock
