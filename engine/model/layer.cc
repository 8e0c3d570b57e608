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

}  // namespace penstock
