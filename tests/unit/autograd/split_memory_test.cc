// What a backward in two halves holds between them, counted at LibTorch's allocator.

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/autograd/split_backward.h"

namespace penstock {
namespace {

// Counts this thread's live bytes while it exists.
class LiveBytes {
 public:
  int64_t now() const { return counter_->live; }

 private:
  struct Counter : public c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override { live += change; }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t live = 0;
  };
  const std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

TEST(SplitBackwardMemory, HoldsHalfOfWhatTheForwardHasSaved) {
  constexpr int64_t kRows = 64;
  constexpr int64_t kWidth = 256;
  constexpr int kBlocks = 4;
  std::vector<at::Tensor> parameters;
  const auto parameter = [&parameters](const at::Tensor& value) {
    return parameters.emplace_back(value.clone().requires_grad_(true));
  };
  struct Block {
    at::Tensor scale, shift, weight, bias;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back({parameter(at::ones({kWidth})), parameter(at::ones({kWidth})),
                      parameter(at::randn({kWidth, kWidth})), parameter(at::ones({kWidth}))});
  }
  const LiveBytes bytes;
  at::Tensor x = at::randn({kRows, kWidth}).requires_grad_(true);
  at::Tensor y = x;
  for (const Block& block : blocks) {
    y = at::layer_norm(y, {kWidth}, block.scale, block.shift);
    y = at::gelu(at::linear(y, block.weight, block.bias));
    y = at::softmax(at::dropout(y, 0.5, /*train=*/true), 1);
  }
  const int64_t saved = bytes.now();
  at::Tensor gradient = at::ones_like(y);
  auto owed = SplitBackward::InputHalf({y}, {gradient}, {x});
  x.mutable_grad().reset();
  for (at::Tensor* dropped : {&x, &y, &gradient}) dropped->reset();
  // Of a block's four saved tensors (before norm, linear and gelu, and the dropout's mask) two are needed for its
  // weights; and a gradient waits at each of those two operators, whoever does the split.
  const int64_t arrived = 2 * kBlocks * kRows * kWidth * int64_t{sizeof(float)};
  const int64_t held = bytes.now();
  EXPECT_GT(held, arrived);
  EXPECT_LT(held, saved);
  const double share = static_cast<double>(held - arrived) / static_cast<double>(saved);
  RecordProperty("held_share_of_saved_tensors", std::to_string(share));
  RecordProperty("with_the_gradients", std::to_string(static_cast<double>(held) / static_cast<double>(saved)));
  EXPECT_LT(share, 0.52) << held - arrived << " of " << saved;
  owed->WeightHalf();
  owed.reset();
  for (at::Tensor& one : parameters) {
    EXPECT_TRUE(one.grad().defined());
    one.mutable_grad().reset();
  }
  EXPECT_EQ(bytes.now(), 0);
}

TEST(SplitBackwardMemory, WithoutParametersNothingIsHeld) {
  const LiveBytes bytes;
  at::Tensor x = at::randn({100}).requires_grad_(true);
  at::Tensor y = x.exp().sin().softmax(0);
  at::Tensor gradient = at::ones_like(y);
  auto owed = SplitBackward::InputHalf({y}, {gradient}, {x});
  for (at::Tensor* dropped : {&x, &y, &gradient}) dropped->reset();
  EXPECT_EQ(bytes.now(), 0);
  owed->WeightHalf();
}

TEST(SplitBackwardMemory, LetsGoOfTheNodesAboveTheIntermediates) {
  at::Tensor x = at::randn({4}).requires_grad_(true);
  const at::Tensor p = at::randn({4}).requires_grad_(true);
  at::Tensor hidden = x.exp();
  at::Tensor y = hidden.add(p).sin();
  const std::weak_ptr<torch::autograd::Node> above = y.grad_fn();
  const std::weak_ptr<torch::autograd::Node> below = hidden.grad_fn();
  const std::weak_ptr<torch::autograd::Node> input = torch::autograd::impl::grad_accumulator(x);
  auto owed = SplitBackward::InputHalf({y}, {at::ones({4})}, {x});
  for (at::Tensor* dropped : {&x, &y, &hidden}) dropped->reset();
  EXPECT_TRUE(above.expired());
  EXPECT_TRUE(below.expired());
  EXPECT_TRUE(input.expired());
  owed->WeightHalf();
}

// A saved leaf keeps only a weak reference to its accumulator, and after the cut no edge leads there any more.
TEST(SplitBackwardMemory, KeepsTheAccumulatorsOfSavedInputs) {
  at::Tensor x = at::randn({4}).requires_grad_(true);
  const at::Tensor p = at::randn({4}).requires_grad_(true);
  at::Tensor y = x.mul(p);
  const std::weak_ptr<torch::autograd::Node> input = torch::autograd::impl::grad_accumulator(x);
  auto owed = SplitBackward::InputHalf({y}, {at::ones({4})}, {x});
  y.reset();
  EXPECT_FALSE(input.expired());
  owed->WeightHalf();
  EXPECT_TRUE(input.expired());
  EXPECT_TRUE(p.grad().equal(x.detach()));
}

}  // namespace
}  // namespace penstock
