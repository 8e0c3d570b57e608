#include "engine/tensor/named_tensors.h"

#include <utility>

namespace penstock {
namespace {

int64_t ByteSize(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
}

}  // namespace

void AddUnder(const std::string& folder, NamedTensors tensors, NamedTensors* all) {
  for (NamedTensor& named : tensors) all->push_back({folder + "/" + named.name, std::move(named.tensor)});
}

NamedTensors TensorsUnder(const std::string& folder, const NamedTensors& all) {
  const std::string start = folder + "/";
  NamedTensors found;
  for (const NamedTensor& named : all) {
    if (named.name.starts_with(start)) found.push_back({named.name.substr(start.size()), named.tensor});
  }
  return found;
}

int64_t ByteSize(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& named : tensors) bytes += ByteSize(named.tensor);
  return bytes;
}

int64_t ByteSize(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += ByteSize(tensor);
  return bytes;
}

}  // namespace penstock
