#include "engine/journal/request_index.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <string>

namespace penstock {
namespace {

std::string IdOf(int call) { return std::to_string(call) + std::string(32, 'i'); }

TEST(RequestIndexTest, CountsWhatItTakesOfTheHeap) {
  const auto used = [] { return static_cast<double>(::mallinfo2().uordblks); };
  if (used() == 0) GTEST_SKIP() << "this allocator tells nothing";
  constexpr int kCalls = 10'000;
  RequestIndex index;
  const double before = used();
  for (int call = 1; call <= kCalls; ++call) index.Add("ann", "TrainStep", IdOf(call), call);
  const double taken = used() - before;
  EXPECT_NEAR(static_cast<double>(index.bytes()), taken, 0.15 * taken);

  const int64_t all = index.bytes();
  index.Add("ann", "TrainStep", IdOf(1), kCalls + 1);
  EXPECT_EQ(index.bytes(), all) << "it has its place already";
  index.Remove("ann", "TrainStep", IdOf(1), 1);
  EXPECT_EQ(index.bytes(), all) << "it is another call's by now";
  index.Remove("ann", "TrainStep", IdOf(1), kCalls + 1);
  EXPECT_LT(index.bytes(), all);
  for (int call = 2; call <= kCalls; ++call) index.Remove("ann", "TrainStep", IdOf(call), call);
  EXPECT_EQ(index.bytes(), 0);
}

}  // namespace
}  // namespace penstock
