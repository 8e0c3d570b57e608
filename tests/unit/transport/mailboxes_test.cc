#include "engine/transport/mailboxes.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Mailboxes, TellAnEarlyMessageFromALateOne) {
  Mailboxes mailboxes(1, Mailboxes::Early::kPossible);
  const auto kept = [&](int64_t run) { return *mailboxes.Put({.run = run}, {}, /*may_be_early=*/true); };
  EXPECT_FALSE(*mailboxes.Put({.run = 1}, {}));  // not open
  EXPECT_TRUE(kept(1));
  mailboxes.Close(1);
  EXPECT_FALSE(kept(1));
  EXPECT_EQ(mailboxes.waiting(), 0);
  for (int64_t run = 5; run < 1005; ++run) mailboxes.Close(run);
  EXPECT_FALSE(kept(1));  // forgotten, and smaller than all that are remembered
  EXPECT_TRUE(kept(2000));
}

// Runs end in any order, also one whose successors are forgotten already.
TEST(Mailboxes, AForgottenRunStaysClosed) {
  Mailboxes mailboxes(1, Mailboxes::Early::kPossible);
  for (int64_t run = 500; run < 1502; ++run) mailboxes.Close(run);
  EXPECT_TRUE(mailboxes.IsClosed(0, 501));
  mailboxes.Close(2);
  EXPECT_TRUE(mailboxes.IsClosed(0, 501));
  EXPECT_FALSE(mailboxes.IsClosed(0, 2000));
}

}  // namespace
}  // namespace penstock
