#pragma once

// Tensors with names, as calls take and give them, and the nameless ones that travel between stages.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace penstock {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using NamedTensors = std::vector<NamedTensor>;

// What one layer or stage hands to the next: one tensor or several.
using Tensors = std::vector<at::Tensor>;

// Adds tensors to others as FOLDER/NAME; and those of a folder, under their names in it.
void AddUnder(const std::string& folder, NamedTensors tensors, NamedTensors* all);
NamedTensors TensorsUnder(const std::string& folder, const NamedTensors& all);

// Bytes of the elements, views counted as if they were copies.
int64_t ByteSize(const NamedTensors& tensors);
int64_t ByteSize(const Tensors& tensors);

}  // namespace penstock
