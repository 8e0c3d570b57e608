#include "server/peer/write_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

TEST(WriteQueue, WritesOneAtATimeInOrderAndEndsOnceBehindTheLast) {
  WriteQueue<std::string> queue;
  const auto first = queue.Push("a");
  ASSERT_NE(first.write, nullptr);
  EXPECT_EQ(*first.write, "a");
  EXPECT_EQ(queue.Push("b").write, nullptr);
  EXPECT_FALSE(queue.Close().end);
  EXPECT_EQ(queue.Push("c").write, nullptr);  // dropped
  EXPECT_EQ(*first.write, "a");               // it stays where it is
  const auto second = queue.Written(true);
  ASSERT_NE(second.write, nullptr);
  EXPECT_EQ(*second.write, "b");
  EXPECT_FALSE(second.end);
  const auto last = queue.Written(true);
  EXPECT_EQ(last.write, nullptr);
  EXPECT_TRUE(last.end);
  EXPECT_FALSE(queue.Close().end);
}

TEST(WriteQueue, WhatIsUrgentGoesBeforeAllButTheOneThatIsOnItsWay) {
  WriteQueue<std::string> queue;
  const auto first = queue.PushAll({"a", "b", "c"});
  ASSERT_NE(first.write, nullptr);
  EXPECT_EQ(queue.PushUrgent("now").write, nullptr);
  EXPECT_EQ(queue.PushAll({"d"}).write, nullptr);
  EXPECT_EQ(*first.write, "a");  // it stays where it is
  std::string order;
  for (auto next = queue.Written(true); next.write != nullptr; next = queue.Written(true)) order += *next.write;
  EXPECT_EQ(order, "nowbcd");
  EXPECT_EQ(queue.PushAll({}).write, nullptr);
  const auto idle = queue.PushUrgent("at once");
  ASSERT_NE(idle.write, nullptr);
  EXPECT_EQ(*idle.write, "at once");
}

TEST(WriteQueue, AnIdleOneEndsAtOnce) {
  WriteQueue<std::string> queue;
  ASSERT_NE(queue.Push("a").write, nullptr);
  EXPECT_FALSE(queue.Written(true).end);
  EXPECT_TRUE(queue.Close().end);
  EXPECT_EQ(queue.Push("b").write, nullptr);  // nothing follows the end
  EXPECT_EQ(queue.PushUrgent("now").write, nullptr);
  EXPECT_EQ(queue.PushAll({"c", "d"}).write, nullptr);
}

TEST(WriteQueue, ABrokenStreamTakesNoMore) {
  WriteQueue<std::string> queue;
  ASSERT_NE(queue.Push("a").write, nullptr);
  queue.Push("b");
  EXPECT_EQ(queue.Written(false).write, nullptr);
  EXPECT_TRUE(queue.Close().end);
}

}  // namespace
}  // namespace penstock
