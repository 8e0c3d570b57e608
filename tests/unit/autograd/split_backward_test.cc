// The properties that a backward in two halves must have (and that LibTorch's versions have had differently), each
// against a plain backward of the same graph, bit for bit.

#include "engine/autograd/split_backward.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;
using Tensors = std::vector<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A graph to go backward through, from inputs `x` and parameters `p`.
struct Graph {
  Shapes inputs;
  Shapes parameters;
  std::function<Tensors(const Tensors& x, const Tensors& p)> forward;
};

Tensors Random(const Shapes& shapes, uint64_t seed, bool leaves) {
  Tensors tensors;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& shape : shapes) tensors.push_back(at::randn(shape, generator).requires_grad_(leaves));
  return tensors;
}

Tensors GradientsFor(const Tensors& roots, uint64_t seed) {
  Shapes shapes;
  for (const at::Tensor& root : roots) shapes.push_back(root.sizes().vec());
  return Random(shapes, seed, false);
}

Tensors GradientsOf(const Tensors& leaves) {
  Tensors gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

void ExpectSame(const Tensors& split, const Tensors& plain, const std::string& what) {
  ASSERT_EQ(split.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(split[i].defined(), plain[i].defined()) << what << i;
    if (plain[i].defined()) {
      EXPECT_TRUE(at::equal(split[i], plain[i])) << what << i << split[i] << plain[i];
    }
  }
}

// Two micro-batches with the same parameters, the input halves of both before the weight halves: everything is as after
// two plain backwards, and after the input halves the parameters have no gradients yet.
void ExpectSplitEqualsPlain(const Graph& graph) {
  const Tensors plain = Random(graph.parameters, 1, true);
  const Tensors split = Random(graph.parameters, 1, true);
  std::vector<std::unique_ptr<SplitBackward>> owed;
  for (uint64_t m : {0, 1}) {
    const Tensors plain_inputs = Random(graph.inputs, 10 + m, true);
    const Tensors roots = graph.forward(plain_inputs, plain);
    torch::autograd::backward(roots, GradientsFor(roots, 20 + m));
    const Tensors inputs = Random(graph.inputs, 10 + m, true);
    {
      const Tensors ends = graph.forward(inputs, split);
      owed.push_back(SplitBackward::InputHalf(ends, GradientsFor(ends, 20 + m), inputs));
    }
    ExpectSame(GradientsOf(inputs), GradientsOf(plain_inputs), "input ");
    for (const at::Tensor& gradient : GradientsOf(split)) EXPECT_FALSE(gradient.defined());
  }
  for (auto& half : owed) half->WeightHalf();
  ExpectSame(GradientsOf(split), GradientsOf(plain), "parameter ");
}

// --- Shared weights, diamonds ---

TEST(SplitBackward, SharedWeightOnAnAncestorPath) {
  ExpectSplitEqualsPlain({{{3, 4}}, {{4, 4}}, [](const Tensors& x, const Tensors& p) {
                            return Tensors{at::linear(at::gelu(at::linear(x[0], p[0])), p[0])};
                          }});
  // The weight of the first layer reaches the second one's own weight, too.
  ExpectSplitEqualsPlain({{{3, 4}}, {{4, 4}, {4, 4}}, [](const Tensors& x, const Tensors& p) {
                            const at::Tensor hidden = at::linear(x[0], p[0]).tanh();
                            return Tensors{at::linear(hidden, p[0].matmul(p[1]).sigmoid()), hidden.mul(p[0].sum())};
                          }});
}

TEST(SplitBackward, DiamondsOnBothSides) {
  ExpectSplitEqualsPlain({{{3, 4}, {3, 4}}, {{4}, {4}}, [](const Tensors& x, const Tensors& p) {
                            const at::Tensor scale =
                                p[0].exp().mul(p[1]);  // one node of the weight half, used three times
                            const at::Tensor a = x[0].mul(scale);
                            const at::Tensor b = a.sin().add(scale);
                            const at::Tensor c = a.cos().mul(x[1]);
                            return Tensors{b.mul(c).add(scale.mul(a)), b};
                          }});
}

TEST(SplitBackward, ParametersAndInputsOnly) {
  ExpectSplitEqualsPlain({{}, {{4}}, [](const Tensors&, const Tensors& p) { return Tensors{p[0].exp().mul(p[0])}; }});
  ExpectSplitEqualsPlain({{{4}}, {}, [](const Tensors& x, const Tensors&) { return Tensors{x[0].exp().mul(x[0])}; }});
}

// --- Where a backward starts ---

TEST(SplitBackward, RootsOfEveryKind) {
  // One on the way to another, one twice, one of the weight half, leaves of both kinds.
  ExpectSplitEqualsPlain({{{3, 4}}, {{4}, {4}}, [](const Tensors& x, const Tensors& p) {
                            const at::Tensor early = x[0].mul(p[0]);
                            const at::Tensor beside = p[0].mul(p[1]);
                            const at::Tensor late = early.add(beside).tanh();
                            return Tensors{late, early, late, beside, beside.exp(), x[0], p[1]};
                          }});
}

TEST(SplitBackward, AScalarNeedsNoGradient) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  const at::Tensor p = at::ones({3}).requires_grad_(true);
  SplitBackward::InputHalf({x.mul(p).sum()}, {at::Tensor()}, {x})->WeightHalf();
  EXPECT_TRUE(at::equal(x.grad(), at::ones({3})));
  EXPECT_TRUE(at::equal(p.grad(), at::ones({3})));
  EXPECT_ANY_THROW(SplitBackward::InputHalf({x.mul(p)}, {at::Tensor()}, {x}));
}

// --- Nodes with several outputs ---

// An operator with two outputs, of an input and a parameter.
struct SumAndProduct : public torch::autograd::Function<SumAndProduct> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& p) {
    context->save_for_backward({x, p});
    return {x.add(p), x.mul(p)};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].add(gradients[1].mul(saved[1])), gradients[0].add(gradients[1].mul(saved[0]))};
  }
};

TEST(SplitBackward, IntermediatesWithSeveralOutputsAtEveryIndex) {
  for (const std::vector<size_t>& used : {std::vector<size_t>{0}, {1}, {0, 1}, {1, 0, 1}}) {
    ExpectSplitEqualsPlain({{{3}}, {{3}}, [&used](const Tensors& x, const Tensors& p) {
                              const variable_list both = SumAndProduct::apply(x[0].exp(), p[0].exp());
                              Tensors roots;
                              for (size_t index : used) roots.push_back(both[index].sin());
                              return roots;
                            }});
  }
  ExpectSplitEqualsPlain({{{3, 4}}, {{3, 4}}, [](const Tensors& x, const Tensors& p) {
                            const std::vector<at::Tensor> parts = at::cat({x[0], p[0]}, 1).unbind(1);
                            return Tensors{parts[7].mul(parts[1]), parts[2]};
                          }});
}

// --- Views and changes in place ---

TEST(SplitBackward, ViewsAndChangesInPlace) {
  ExpectSplitEqualsPlain({{{4, 6}}, {{6, 6}, {2}, {6}}, [](const Tensors& x, const Tensors& p) {
                            const at::Tensor hidden = at::linear(x[0], p[0]);
                            const at::Tensor view = hidden.view({2, 2, 6}).transpose(0, 1);
                            hidden.narrow(1, 2, 2).mul_(p[1]);            // its node has both an input and a parameter
                            const at::Tensor late = view.add(1).relu_();  // a view of what was changed
                            return Tensors{late.reshape({4, 6}).mul(p[2]), view, hidden.select(1, 0)};
                          }});
  // Of what leads to parameters only; into what leads to inputs.
  ExpectSplitEqualsPlain({{{4, 6}}, {{6}, {3}}, [](const Tensors& x, const Tensors& p) {
                            const at::Tensor scale = p[0].sin();
                            scale.narrow(0, 0, 3).add_(p[1]);
                            const at::Tensor all = x[0].clone();
                            all.select(0, 1).copy_(scale);
                            all.select(0, 2).mul_(scale.sin());
                            return Tensors{all, scale.mul(2)};
                          }});
}

// --- Operators with saved tensors for both halves ---

TEST(SplitBackward, OperatorsOfTheModels) {
  const at::Tensor indices = at::tensor({2, 0, 2, 1}, at::kLong);  // integers take no part
  ExpectSplitEqualsPlain({{{4, 6}}, {{6}, {6}, {5, 6}}, [&indices](const Tensors& x, const Tensors& p) {
                            const at::Tensor norm = at::layer_norm(x[0], {6}, p[0], p[1]);
                            return Tensors{norm.add(at::embedding(p[2], indices)).softmax(1)};
                          }});
  ExpectSplitEqualsPlain(
      {{{2, 4, 5, 5}}, {{6, 4, 3, 3}, {6}, {6}, {6}, {6}, {6}}, [](const Tensors& x, const Tensors& p) {
         at::Tensor y = at::conv2d(x[0], p[0], p[1], 1, 1).relu_();
         y = at::batch_norm(y, p[2], p[3], {}, {}, true, 0.1, 1e-5, false);
         return Tensors{at::group_norm(y, 2, p[4], p[5])};
       }});
  // The keys are a parameter's: attention itself lies on both sides.
  ExpectSplitEqualsPlain({{{1, 2, 4, 8}}, {{1, 2, 4, 8}}, [](const Tensors& x, const Tensors& p) {
                            return Tensors{at::scaled_dot_product_attention(x[0], p[0], x[0].mul(2), {}, 0, true)};
                          }});
}

// --- What has no part in it ---

// Gives nothing back for its input, and by that an undefined gradient to what lies above.
struct Blocks : public torch::autograd::Function<Blocks> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list) { return {at::Tensor()}; }
};

TEST(SplitBackward, UnusedInputsAndUndefinedGradients) {
  ExpectSplitEqualsPlain({{{3}, {3}, {3}}, {{3}, {3}, {3}}, [](const Tensors& x, const Tensors& p) {
                            const at::Tensor beside = x[1].mul(p[1]);  // used, but for nothing
                            const at::Tensor blocked = Blocks::apply(x[2].mul(p[2]));
                            return Tensors{x[0].mul(p[0]).add(blocked)};
                          }});
  // A node whose gradients are all undefined makes zeros for its parameter, as LibTorch's custom functions do.
  ExpectSplitEqualsPlain({{{3}}, {{3}}, [](const Tensors& x, const Tensors& p) {
                            const variable_list both = SumAndProduct::apply(x[0], p[0]);
                            return Tensors{Blocks::apply(both[1])};
                          }});
}

TEST(SplitBackward, InputsThatCanHaveNoGradientAreLeftOut) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  const at::Tensor p = at::ones({3}).requires_grad_(true);
  const at::Tensor integers = at::ones({3}, at::kLong);
  const at::Tensor constant = at::ones({3});
  const at::Tensor unused = at::ones({3}).requires_grad_(true);
  const at::Tensor inner = x.mul(2);  // no leaf
  SplitBackward::InputHalf({inner.mul(p).mul(integers).mul(constant)}, {at::ones({3})},
                           {integers, at::Tensor(), constant, unused, inner, x})
      ->WeightHalf();
  EXPECT_TRUE(at::equal(x.grad(), at::ones({3}).mul(2)));
  EXPECT_TRUE(at::equal(p.grad(), at::ones({3}).mul(2)));
  EXPECT_FALSE(unused.grad().defined());
}

TEST(SplitBackward, NoRootsOweNothing) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  SplitBackward::InputHalf({}, {}, {x})->WeightHalf();
  EXPECT_FALSE(x.grad().defined());
}

TEST(SplitBackward, LeavesThatAreNoInputsBelongToTheWeightHalf) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  const at::Tensor y = at::ones({3}).requires_grad_(true);
  auto owed = SplitBackward::InputHalf({x.mul(y).exp()}, {at::ones({3})}, {});
  EXPECT_FALSE(x.grad().defined());
  owed->WeightHalf();
  EXPECT_TRUE(x.grad().defined() && y.grad().defined());
}

// --- Work that is done once ---

// A product that counts how often each of its gradients is computed, and computes what is asked for only.
struct CountingProduct : public torch::autograd::Function<CountingProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& p) {
    context->save_for_backward({x, p});
    return x.mul(p);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    variable_list back(2);
    for (size_t i = 0; i < 2; ++i) {
      if (!context->needs_input_grad(i)) continue;
      ++counts[i];
      back[i] = gradients[0].mul(saved[1 - i]);
    }
    return back;
  }
  static inline int counts[2] = {};
};

TEST(SplitBackward, AFunctionThatAsksWhatIsNeededComputesEachGradientOnce) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  const at::Tensor p = at::ones({3}).requires_grad_(true);
  CountingProduct::counts[0] = CountingProduct::counts[1] = 0;
  auto owed = SplitBackward::InputHalf({CountingProduct::apply(x, p).exp()}, {at::ones({3})}, {x});
  EXPECT_EQ(CountingProduct::counts[0], 1);
  EXPECT_EQ(CountingProduct::counts[1], 0);
  owed->WeightHalf();
  EXPECT_EQ(CountingProduct::counts[0], 1);
  EXPECT_EQ(CountingProduct::counts[1], 1);
}

TEST(SplitBackward, HooksAreCalledOnceAndWhatTheyGiveCounts) {
  struct Counts {
    int input = 0, shared = 0, intermediate = 0, beside = 0, parameter = 0, accumulated = 0, node = 0;
    bool operator==(const Counts&) const = default;
  };
  // Counts calls of a hook on a node.
  struct NodeHook : public torch::autograd::FunctionPostHook {
    explicit NodeHook(int* count) : count(count) {}
    variable_list operator()(const variable_list& outputs, const variable_list&) override {
      ++*count;
      return outputs;
    }
    int* count;
  };
  struct Accumulated : public torch::autograd::PostAccumulateGradHook {
    explicit Accumulated(int* count) : count(count) {}
    void operator()(const at::Tensor&) override { ++*count; }
    int* count;
  };
  const auto doubles = [](int* count) {
    return [count](const at::Tensor& gradient) {
      ++*count;
      return gradient.mul(2);
    };
  };
  const auto run = [&](bool split, Counts& counts, Counts* after_input_half) {
    const Tensors x = Random({{3, 4}}, 1, true);
    const Tensors p = Random({{4, 4}, {4}}, 2, true);
    x[0].register_hook(doubles(&counts.input));
    p[0].register_hook(doubles(&counts.parameter));
    torch::autograd::impl::set_post_acc_grad_hooks(p[0], std::make_unique<Accumulated>(&counts.accumulated));
    const at::Tensor scale = p[1].exp();
    scale.register_hook(doubles(&counts.beside));
    const at::Tensor shared = x[0].sin();
    shared.register_hook(doubles(&counts.shared));
    const at::Tensor product = at::linear(shared, p[0]).mul(scale);
    product.register_hook(doubles(&counts.intermediate));
    product.retain_grad();
    const auto accumulator = torch::autograd::impl::grad_accumulator(p[0]);
    accumulator->add_post_hook(std::make_unique<NodeHook>(&counts.node));
    const Tensors roots{product.tanh()};
    if (split) {
      auto owed = SplitBackward::InputHalf(roots, GradientsFor(roots, 3), x);
      *after_input_half = counts;
      owed->WeightHalf();
    } else {
      torch::autograd::backward(roots, GradientsFor(roots, 3));
    }
    return Tensors{x[0].grad(), p[0].grad(), p[1].grad(), product.grad()};
  };
  Counts plain;
  Counts split;
  Counts input_half;
  const Tensors expected = run(false, plain, nullptr);
  ExpectSame(run(true, split, &input_half), expected, "gradient ");
  EXPECT_EQ(plain, (Counts{1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(split, plain);
  EXPECT_EQ(input_half, (Counts{.input = 1, .shared = 1, .intermediate = 1}));
}

// --- Failure ---

struct Throws : public torch::autograd::Function<Throws> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    if (armed) throw std::runtime_error("no gradient today");
    return gradients;
  }
  static inline bool armed = false;
};

TEST(SplitBackward, AFailedInputHalfLeavesNothingBehind) {
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  const at::Tensor p = at::ones({3}).requires_grad_(true);
  const at::Tensor root = Throws::apply(x.mul(2)).mul(p);
  Throws::armed = true;
  EXPECT_ANY_THROW(SplitBackward::InputHalf({root}, {at::ones({3})}, {x}));
  Throws::armed = false;
  EXPECT_TRUE(root.grad_fn()->pre_hooks().empty());
  EXPECT_FALSE(p.grad().defined());
  torch::autograd::backward({root}, {at::ones({3})});
  EXPECT_TRUE(at::equal(x.grad(), at::ones({3}).mul(2)));
}

}  // namespace
}  // namespace penstock
