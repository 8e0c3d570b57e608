#include "client/lib/host_tensor.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/chunker.h"

namespace penstock {
namespace {

constexpr std::align_val_t kAlignment{static_cast<size_t>(kPayloadAlignment)};

}  // namespace

void HostTensor::Free::operator()(char* bytes) const { ::operator delete[](bytes, kAlignment); }

absl::StatusOr<HostTensor> HostTensor::Allocate(TensorHeader header) {
  if (header.byte_size == 0) {
    PENSTOCK_ASSIGN_OR_RETURN(header.byte_size, PayloadBytes(header.type, header.shape, "tensor"));
  }
  // A name is the sender's business: inputs that are named by their place may have none here.
  TensorHeader named = header;
  if (named.name.empty()) named.name = "unnamed";
  PENSTOCK_RETURN_IF_ERROR(ValidateTensorHeader(named, "tensor"));

  HostTensor tensor;
  const size_t size = header.byte_size == 0 ? 1 : static_cast<size_t>(header.byte_size);
  tensor.bytes_.reset(static_cast<char*>(::operator new[](size, kAlignment)));
  tensor.header_ = std::move(header);
  return tensor;
}

absl::StatusOr<HostTensor> HostTensor::FromBytes(TensorHeader header, std::string_view bytes) {
  header.byte_size = static_cast<int64_t>(bytes.size());
  PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, Allocate(std::move(header)));
  if (tensor.header_.byte_size != static_cast<int64_t>(bytes.size())) {
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_HEADER",
                 absl::StrCat("tensor: holds ", bytes.size(), " bytes, but type and shape need ",
                              tensor.header_.byte_size))
        .With("field", "tensor.byte_size")
        .With("value", absl::StrCat(bytes.size()));
  }
  if (!bytes.empty()) std::memcpy(tensor.bytes_.get(), bytes.data(), bytes.size());
  return tensor;
}

absl::StatusOr<HostTensor> HostTensor::FromMessage(const v1::Tensor& message) {
  return FromBytes(HeaderFromMessage(message.header()), message.data());
}

v1::Tensor HostTensor::ToMessage() const {
  v1::Tensor message;
  *message.mutable_header() = HeaderToMessage(header_);
  message.set_data(bytes_.get(), static_cast<size_t>(header_.byte_size));
  return message;
}

TensorHeader HostTensor::HeaderFromMessage(const v1::TensorHeader& message) {
  return {message.name(), static_cast<DataType>(message.type()),
          std::vector<int64_t>(message.shape().begin(), message.shape().end()), message.byte_size()};
}

v1::TensorHeader HostTensor::HeaderToMessage(const TensorHeader& header) {
  v1::TensorHeader message;
  message.set_name(header.name);
  message.set_type(static_cast<v1::DataType>(header.type));
  message.mutable_shape()->Add(header.shape.begin(), header.shape.end());
  message.set_byte_size(header.byte_size);
  return message;
}

absl::Status HostTensor::CheckType(DataType wanted) const {
  if (header_.type == wanted) return absl::OkStatus();
  const std::string_view have = DataTypeName(header_.type);
  const std::string_view want = DataTypeName(wanted);
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
               absl::StrCat("tensor ", header_.name, ": read as ", absl::string_view(want.data(), want.size()),
                            ", but it is ", absl::string_view(have.data(), have.size())))
      .With("field", header_.name)
      .With("value", have);
}

}  // namespace penstock
