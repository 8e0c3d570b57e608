#include "engine/autograd/split_backward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace penstock {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::FunctionPreHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Edges and the gradients that go in there.
struct Starts {
  edge_list edges;
  variable_list gradients;

  void Add(Edge edge, at::Tensor gradient) {
    edges.push_back(std::move(edge));
    gradients.push_back(std::move(gradient));
  }
  at::TensorOptions OptionsOfAny() const {
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined()) return gradient.options();
    }
    return {};
  }
};

// Gives out gradients, undefined ones too, and keeps none of them.
class Source : public Node {
 public:
  explicit Source(Starts starts) : Node(std::move(starts.edges)), gradients_(std::move(starts.gradients)) {}
  variable_list apply(variable_list&&) override { return std::move(gradients_); }

 private:
  variable_list gradients_;
};

void Execute(const edge_list& roots, const variable_list& gradients, bool keep_graph, const edge_list& outputs) {
  Engine::get_default_engine().execute(roots, gradients, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/true,
                                       outputs);
}

// The nodes of a graph: from which of them is one of the inputs' accumulators reached?
class Closure {
 public:
  Closure(const edge_list& roots, const edge_list& inputs) {
    for (const Edge& input : inputs) reaches_[input.function.get()] = true;
    for (const Edge& root : roots) Walk(root.function.get());
  }

  bool Contains(const Node* node) const {
    const auto known = reaches_.find(node);
    return known != reaches_.end() && known->second;
  }
  // The nodes of the closure that were met, each after all that it leads to.
  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  // Depth first, without recursion: graphs are as deep as models.
  void Walk(Node* root) {
    struct Visit {
      Node* node;
      size_t next;  // edge to follow
    };
    std::vector<Visit> path;
    if (Enter(root)) path.push_back({root, 0});
    while (!path.empty()) {
      Visit& visit = path.back();
      const edge_list& edges = visit.node->next_edges();
      if (visit.next < edges.size()) {
        Node* next = edges[visit.next++].function.get();
        if (next != nullptr && Enter(next)) path.push_back({next, 0});
        continue;
      }
      bool& reaches = reaches_[visit.node];
      for (const Edge& edge : edges) reaches = reaches || Contains(edge.function.get());
      if (reaches) nodes_.push_back(visit.node);
      path.pop_back();
    }
  }
  bool Enter(Node* node) { return met_.emplace(node, true).second; }

  std::unordered_map<const Node*, bool> reaches_;
  std::unordered_map<const Node*, bool> met_;
  std::vector<Node*> nodes_;
};

// Notes what arrives at a node, for each of its outputs. It holds no node, so that no cycle of references comes to be.
class Capture : public FunctionPreHook {
 public:
  explicit Capture(std::shared_ptr<variable_list> arrived) : arrived_(std::move(arrived)) {}
  variable_list operator()(const variable_list& gradients) override {
    *arrived_ = gradients;
    return gradients;
  }

 private:
  const std::shared_ptr<variable_list> arrived_;
};

// A node of the closure with an edge out of it, while the input half runs.
class Intermediate {
 public:
  explicit Intermediate(std::shared_ptr<Node> node)
      : node_(std::move(node)), arrived_(std::make_shared<variable_list>()) {
    auto capture = std::make_unique<Capture>(arrived_);
    capture_ = capture.get();
    node_->add_pre_hook(std::move(capture));
  }
  Intermediate(Intermediate&&) = default;
  ~Intermediate() {
    if (node_ == nullptr) return;  // moved from
    auto& hooks = node_->pre_hooks();
    hooks.erase(std::remove_if(hooks.begin(), hooks.end(), [this](const auto& hook) { return hook.get() == capture_; }),
                hooks.end());
  }

  // After the input half: takes away what leads into the closure, and the hooks that have seen these gradients already.
  // Returns the accumulators of inputs that it has led to: a saved leaf may want its own back.
  void Cut(const Closure& closure, std::vector<std::shared_ptr<Node>>& pinned) {
    for (Edge& edge : node_->next_edges()) {
      if (edge.function == nullptr || !closure.Contains(edge.function.get())) continue;
      if (edge.function->num_outputs() == 0) pinned.push_back(edge.function);
      edge = Edge();
    }
    node_->tensor_pre_hooks().clear();
    node_->retains_grad_hooks().clear();
    node_->pre_hooks().clear();
  }

  void AddTo(Starts& starts) const {
    bool any = false;
    for (size_t k = 0; k < arrived_->size(); ++k) {
      if (!(*arrived_)[k].defined()) continue;
      starts.Add(Edge(node_, static_cast<uint32_t>(k)), (*arrived_)[k]);
      any = true;
    }
    // Reached by nothing but undefined gradients: an operator may make zeros of them.
    if (!any && !arrived_->empty()) starts.Add(Edge(node_, 0), at::Tensor());
  }

 private:
  std::shared_ptr<Node> node_;
  std::shared_ptr<variable_list> arrived_;
  FunctionPreHook* capture_ = nullptr;
};

class OwedWeightHalf : public SplitBackward {
 public:
  OwedWeightHalf(Starts starts, std::vector<std::shared_ptr<Node>> pinned)
      : pinned_(std::move(pinned)), starts_(std::move(starts)) {}

  void WeightHalf() override {
    Starts starts = std::exchange(starts_, Starts());
    if (!starts.edges.empty()) {
      // On the device of the gradients, behind what its stream does now.
      at::Tensor signal = at::empty({0}, starts.OptionsOfAny());
      const auto source = std::make_shared<Source>(std::move(starts));
      Execute({torch::autograd::Edge(source, source->add_input_metadata(signal))}, {signal}, /*keep_graph=*/false, {});
    }
    pinned_.clear();
  }

 private:
  std::vector<std::shared_ptr<Node>> pinned_;  // held weakly by the leaves
  Starts starts_;
};

edge_list AccumulatorsOf(const std::vector<at::Tensor>& inputs) {
  edge_list accumulators;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad() || !input.is_leaf()) continue;
    std::shared_ptr<Node> accumulator = torch::autograd::impl::try_get_grad_accumulator(input);
    if (accumulator != nullptr) accumulators.emplace_back(std::move(accumulator), 0);  // else no graph uses it
  }
  return accumulators;
}

}  // namespace

std::unique_ptr<SplitBackward> SplitBackward::InputHalf(const std::vector<at::Tensor>& roots,
                                                        const std::vector<at::Tensor>& root_gradients,
                                                        const std::vector<at::Tensor>& inputs) {
  Starts all;
  for (size_t i = 0; i < roots.size(); ++i) {
    const bool given = root_gradients[i].defined();
    TORCH_CHECK(given || roots[i].numel() == 1, "grad can be implicitly created only for scalar outputs");
    all.Add(torch::autograd::impl::gradient_edge(roots[i]), given ? root_gradients[i] : at::ones_like(roots[i]));
  }
  const edge_list accumulators = AccumulatorsOf(inputs);
  const Closure closure(all.edges, accumulators);

  Starts now;
  Starts later;
  for (size_t i = 0; i < all.edges.size(); ++i) {
    Starts& half = closure.Contains(all.edges[i].function.get()) ? now : later;
    half.Add(all.edges[i], all.gradients[i]);
  }
  if (now.edges.empty())
    return std::make_unique<OwedWeightHalf>(std::move(later), std::vector<std::shared_ptr<Node>>());

  std::vector<Intermediate> intermediates;
  std::vector<std::shared_ptr<Node>> others;
  for (Node* node : closure.nodes()) {
    const edge_list& edges = node->next_edges();
    const bool leaves = std::any_of(edges.begin(), edges.end(), [&closure](const Edge& edge) {
      return edge.function != nullptr && !closure.Contains(edge.function.get());
    });
    if (leaves) {
      intermediates.emplace_back(node->shared_from_this());
    } else {
      others.push_back(node->shared_from_this());
    }
  }
  Execute(now.edges, now.gradients, /*keep_graph=*/!intermediates.empty(), accumulators);
  std::vector<std::shared_ptr<Node>> pinned;
  for (Intermediate& intermediate : intermediates) {
    intermediate.Cut(closure, pinned);
    intermediate.AddTo(later);
  }
  // Saved tensors hold the nodes that made them, so that the cut alone frees nothing.
  for (const std::shared_ptr<Node>& node : others) node->release_variables();
  return std::make_unique<OwedWeightHalf>(std::move(later), std::move(pinned));
}

}  // namespace penstock
