#include "server/rpc/convert/tensor_slice.h"

namespace penstock {
namespace {

constexpr size_t kCopyBelowBytes = 1024;

}  // namespace

grpc::Slice ShareBytes(const at::Tensor& tensor, std::string_view bytes) {
  if (bytes.size() < kCopyBelowBytes) return grpc::Slice(bytes.data(), bytes.size());
  auto* keeper = new at::Tensor(tensor);
  return grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(), [](void* kept) { delete static_cast<at::Tensor*>(kept); }, keeper);
}

}  // namespace penstock
