#include "engine/exec/weights_gate.h"

#include <gtest/gtest.h>

#include <new>
#include <string>

#include "tests/support/failing_new.h"

namespace penstock {
namespace {

// Notes what it is told.
class Visitor : public GateVisit {
 public:
  Visitor(std::string name, int64_t sequence, std::string* log, int32_t priority = 0)
      : GateVisit({.priority = priority, .sequence = sequence}), name_(std::move(name)), log_(log) {}
  void Start() override { *log_ += name_; }
  void GiveWay() override { *log_ += "-" + name_; }

 private:
  const std::string name_;
  std::string* const log_;
};

class WeightsGateTest : public ::testing::Test {
 protected:
  WeightsGate::Visit Visit(std::string name, int32_t priority = 0) {
    return std::make_shared<Visitor>(std::move(name), next_++, &log_, priority);
  }
  void Request() {
    gate_.RequestExclusive([this] { log_ += "W"; });
  }

  WeightsGate gate_;
  std::string log_;
  int64_t next_ = 0;
};

TEST_F(WeightsGateTest, LetsInferenceInAtOnceWithoutAWriter) {
  const auto a = Visit("a");
  const auto b = Visit("b");
  gate_.Enter(a);
  gate_.Enter(b);
  EXPECT_EQ(log_, "ab");
  gate_.Leave(a);
  gate_.Leave(b);
  Request();
  EXPECT_EQ(log_, "abW");
}

TEST_F(WeightsGateTest, AsksOpenRunsToGiveWayAndGrantsWhenTheLastHasLeft) {
  const auto a = Visit("a");
  const auto b = Visit("b");
  gate_.Enter(a);
  gate_.Enter(b);
  Request();
  EXPECT_EQ(log_, "ab-a-b");
  gate_.Leave(a);
  EXPECT_EQ(log_, "ab-a-b");
  gate_.Leave(b);
  EXPECT_EQ(log_, "ab-a-bW");
  gate_.ReleaseExclusive();
  EXPECT_EQ(log_, "ab-a-bW");  // both had finished
}

TEST_F(WeightsGateTest, StartsWhoGaveWayAgainAfterTheWriterBeforeThoseThatCameLater) {
  const auto a = Visit("a");
  const auto b = Visit("b");
  gate_.Enter(a);
  Request();
  gate_.Enter(b);
  EXPECT_EQ(log_, "a-a");
  gate_.Reenter(a);
  EXPECT_EQ(log_, "a-aW");
  gate_.Enter(Visit("c"));
  gate_.ReleaseExclusive();
  EXPECT_EQ(log_, "a-aWabc");
  // All three are inside now: the next writer waits for them.
  Request();
  EXPECT_EQ(log_, "a-aWabc-a-b-c");
}

TEST_F(WeightsGateTest, StartsHigherPrioritiesFirst) {
  Request();
  gate_.Enter(Visit("a"));
  gate_.Enter(Visit("b", 2));
  gate_.Enter(Visit("c", -1));
  gate_.Enter(Visit("d", 2));
  gate_.ReleaseExclusive();
  EXPECT_EQ(log_, "Wbdac");
}

TEST_F(WeightsGateTest, ReenteringWithoutAWriterStartsAtOnce) {
  const auto a = Visit("a");
  gate_.Enter(a);
  gate_.Reenter(a);
  EXPECT_EQ(log_, "aa");
  gate_.Leave(a);
}

TEST_F(WeightsGateTest, WhatFindsNoMemoryHasNotHappened) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const auto a = Visit("a");
  const auto b = Visit("b");
  gate_.Enter(a);
  std::function<void()> granted = [this] { log_ += "W"; };
  testing::FailNew();
  EXPECT_THROW(gate_.RequestExclusive(std::move(granted)), std::bad_alloc);
  EXPECT_THROW(gate_.Enter(b), std::bad_alloc);
  EXPECT_TRUE(testing::StopFailingNew());
  EXPECT_EQ(log_, "a");
  gate_.Enter(b);
  Request();
  EXPECT_EQ(log_, "ab-a-b");
  // All else takes no memory.
  testing::FailNew();
  gate_.Reenter(a);
  gate_.Leave(b);
  gate_.ReleaseExclusive();
  EXPECT_FALSE(testing::StopFailingNew());
  EXPECT_EQ(log_, "ab-a-bWa");
}

}  // namespace
}  // namespace penstock
