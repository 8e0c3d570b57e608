#include "engine/model/layer.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace penstock {

at::Tensor Layer::AddParameter(std::string name, at::Tensor initial) {
  PENSTOCK_CHECK(initial.defined() && !name.empty());
  PENSTOCK_CHECK(std::none_of(parameters_.begin(), parameters_.end(),
                              [&](const NamedTensor& known) { return known.name == name; }));
  at::Tensor parameter = initial.detach().requires_grad_(true);
  parameters_.push_back({std::move(name), parameter});
  return parameter;
}

at::Tensor Layer::AddBuffer(std::string name, at::Tensor initial) {
  PENSTOCK_CHECK(initial.defined() && !name.empty());
  buffers_.push_back({std::move(name), initial});
  return initial;
}

SkipName Layer::Isolated(const std::string& name) const {
  SkipName skip{.skip_namespace = "", .name = name};
  for (const auto& [of, skip_namespace] : namespaces_) {
    if (of == name) skip.skip_namespace = skip_namespace;
  }
  return skip;
}

SkipDeclaration Layer::skips() const {
  SkipDeclaration declaration;
  for (const std::string& name : stashes_) declaration.stashes.push_back(Isolated(name));
  for (const std::string& name : pops_) declaration.pops.push_back(Isolated(name));
  return declaration;
}

void Layer::Isolate(const SkipIsolation& isolation) {
  std::vector<std::string> names = isolation.only;
  if (names.empty()) {
    names = stashes_;
    names.insert(names.end(), pops_.begin(), pops_.end());
  }
  for (std::string& name : names) namespaces_.emplace_back(std::move(name), isolation.skip_namespace);
}

}  // namespace penstock
