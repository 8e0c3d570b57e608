#include "engine/tensor/named_tensors.h"

namespace penstock {
namespace {

int64_t ByteSize(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
}

}  // namespace

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
