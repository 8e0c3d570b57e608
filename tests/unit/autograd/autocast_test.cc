#include "engine/autograd/autocast.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(AutocastGuard, LeavesTheThreadAsItWas) {
  const bool cached = at::autocast::is_autocast_cache_enabled();
  const c10::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  ASSERT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  {
    const AutocastGuard guard(at::kCPU, at::kHalf);
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    {
      const AutocastGuard none(at::kCPU, std::nullopt);
      EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), type);
  EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cached);
}

}  // namespace
}  // namespace penstock
