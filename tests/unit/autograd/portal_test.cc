#include "engine/autograd/portal.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

void ExpectGone(const absl::Status& status, const std::string& sentence) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(status), "BUG");
  EXPECT_EQ(status.message(), sentence);
}

absl::Status UseFails(Portal& portal) {
  return RunTorch([&] { portal.Use(); });
}

TEST(Portal, HasTheLivesOfTheAncestors) {
  struct Case {
    int life;
    std::vector<int> after;  // the stash, the pop, the pop in backward
  };
  const Case cases[] = {{Portal::kCheckpointed, {2, 1, 0}}, {Portal::kPlain, {1, 0}}, {1, {0}}};
  for (const Case& one : cases) {
    const at::Tensor tensor = at::ones({2});
    Portal portal(Batch(tensor), one.life);
    for (int after : one.after) {
      EXPECT_TRUE(at::equal(portal.Use().TensorAt(0), tensor));
      EXPECT_EQ(portal.life(), after);
    }
    ExpectGone(UseFails(portal), "tensor in portal has been removed");
  }
}

TEST(Portal, LivesFromNoneToFourAndThreePlusOne) {
  for (int life = 0; life <= 4; ++life) {
    Portal portal(Batch(at::ones({1})), life);
    for (int use = 0; use < life; ++use) EXPECT_TRUE(RunTorch([&] { portal.Use(); }).ok()) << life;
    ExpectGone(UseFails(portal), "tensor in portal has been removed");
  }
  Portal portal(Batch(at::ones({1})), 3);
  for (int use = 0; use < 3; ++use) portal.Use();
  portal = Portal(Batch(at::ones({1}).mul(2)), 1);  // saved again: the same portal serves
  EXPECT_EQ(portal.Use().TensorAt(0).item().toDouble(), 2);
  ExpectGone(UseFails(portal), "tensor in portal has been removed");
}

TEST(Portal, DropsTheTensorWithItsLastUse) {
  at::Tensor tensor = at::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> watch(tensor.getIntrusivePtr());
  Portal portal{Batch(std::move(tensor)), 2};
  portal.Use();
  EXPECT_FALSE(watch.expired());
  portal.Use();
  EXPECT_TRUE(watch.expired());
}

TEST(Portal, LooksWithoutTakingALife) {
  Portal portal(Batch(at::ones({2})), 1);
  EXPECT_TRUE(portal.Look()[0].is_tensor());
  EXPECT_EQ(portal.life(), 1);
  portal.Use();
  EXPECT_FALSE(RunTorch([&] { portal.Look(); }).ok());
}

TEST(Portal, TheGradientIsThereForOneUse) {
  Portal portal(Batch(at::ones({1})), Portal::kPlain);
  const auto take = [&] { return RunTorch([&] { portal.TakeGradient(); }); };
  ExpectGone(take(), "grad in portal has been removed or never set");
  portal.PutGradient(Batch(at::ones({1}).mul(3)));
  EXPECT_EQ(portal.TakeGradient().TensorAt(0).item().toDouble(), 3);
  ExpectGone(take(), "grad in portal has been removed or never set");
  at::Tensor gradient = at::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> watch(gradient.getIntrusivePtr());
  portal.PutGradient(Batch(std::move(gradient)));
  portal.TakeGradient();
  EXPECT_TRUE(watch.expired());
  portal.PutGradient(Batch(Value()));  // a missing gradient has come, too
  EXPECT_TRUE(portal.TakeGradient()[0].is_none());
}

}  // namespace
}  // namespace penstock
