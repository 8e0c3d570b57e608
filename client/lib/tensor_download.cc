#include "client/lib/tensor_download.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/lib/durations.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/chunker.h"

namespace penstock {
namespace {

// The tensors of a stream, as far as they have arrived.
//
// Model:     one buffer and one assembler per announced tensor; only those that are wanted have them.
class Arriving {
 public:
  // Reserves memory. Called again by a later attempt, it only compares: the bytes that arrived stay.
  absl::Status Announce(const google::protobuf::RepeatedPtrField<v1::TensorHeader>& headers,
                        const std::string& wanted) {
    if (announced_) {
      if (headers.size() != static_cast<int>(parts_.size())) return ServerBug("the tensors of a handle changed");
      return absl::OkStatus();
    }
    for (const v1::TensorHeader& message : headers) {
      Part part;
      part.name = message.name();
      if (wanted.empty() || wanted == message.name()) {
        TensorHeader header = HostTensor::HeaderFromMessage(message);
        std::string name = std::move(header.name);  // that of a slot of the optimizer has slashes, unlike others
        header.name = "arriving";
        PENSTOCK_ASSIGN_OR_RETURN(part.tensor, HostTensor::Allocate(std::move(header)));
        part.tensor.set_name(std::move(name));
        part.assembler.emplace(part.tensor.mutable_bytes(), part.tensor.header().byte_size, "chunk");
      }
      parts_.push_back(std::move(part));
    }
    announced_ = true;
    return absl::OkStatus();
  }

  absl::Status Add(const v1::TensorChunk& chunk) {
    if (chunk.tensor() < 0 || chunk.tensor() >= static_cast<int>(parts_.size()) ||
        !parts_[chunk.tensor()].assembler.has_value()) {
      return ServerBug(absl::StrCat("a chunk of tensor ", chunk.tensor(), ", which was not asked for"));
    }
    return parts_[chunk.tensor()].assembler->Add(chunk.offset(), chunk.data(), chunk.crc32c());
  }

  // The first tensor that misses bytes; -1 if none does.
  int FirstIncomplete() const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].assembler.has_value() && !parts_[i].assembler->complete()) return static_cast<int>(i);
    }
    return -1;
  }

  bool announced() const { return announced_; }

  int64_t TotalBytes() const {
    int64_t total = 0;
    for (const Part& part : parts_) {
      if (part.assembler.has_value()) total += part.assembler->next_offset();
    }
    return total;
  }

  const std::string& name(int tensor) const { return parts_[tensor].name; }
  int64_t next_offset(int tensor) const { return parts_[tensor].assembler->next_offset(); }
  void Forget() { *this = Arriving(); }

  // Values that are no tensors, each in one message.
  void AnnounceValues(const google::protobuf::RepeatedPtrField<std::string>& names, const std::string& wanted) {
    if (values_announced_) return;
    values_announced_ = true;
    for (const std::string& name : names) {
      if (wanted.empty() || wanted == name) missing_values_.push_back(name);
    }
  }
  absl::Status AddValue(v1::NamedValue value) {
    const auto place = std::find(missing_values_.begin(), missing_values_.end(), value.name());
    if (place == missing_values_.end()) return ServerBug("a value that was not asked for");
    missing_values_.erase(place);
    values_.push_back(std::move(value));
    return absl::OkStatus();
  }
  const std::vector<std::string>& missing_values() const { return missing_values_; }
  int64_t arrived_values() const { return static_cast<int64_t>(values_.size()); }
  std::vector<v1::NamedValue> TakeValues() { return std::move(values_); }

  std::vector<HostTensor> Take() {
    std::vector<HostTensor> tensors;
    for (Part& part : parts_) {
      if (part.assembler.has_value()) tensors.push_back(std::move(part.tensor));
    }
    return tensors;
  }

 private:
  struct Part {
    std::string name;
    HostTensor tensor;
    std::optional<ChunkAssembler> assembler;
  };
  bool announced_ = false;
  std::vector<Part> parts_;
  bool values_announced_ = false;
  std::vector<std::string> missing_values_;
  std::vector<v1::NamedValue> values_;
};

// Reads a stream to its end, or to the first local error, which ends the call.
template <typename Response, typename OnMessage>
CallError ReadAll(grpc::ClientReader<Response>& stream, grpc::ClientContext& context, const OnMessage& on_message) {
  Response response;
  absl::Status local;
  while (local.ok() && stream.Read(&response)) local = on_message(response);
  if (!local.ok()) context.TryCancel();
  while (!local.ok() && stream.Read(&response)) {
  }
  const grpc::Status ended = stream.Finish();
  if (!local.ok()) return {local, {}, false};
  return DecodeCallError(ended, context);
}

}  // namespace

absl::StatusOr<FetchedHandle> DownloadHandle(CallRunner& runner, v1::HandleService::Stub& stub, const std::string& name,
                                             const FetchOptions& options) {
  FetchedHandle fetched;
  Arriving arriving;
  // One pass reads all that is wanted; after a break, one more per value that is missing and per tensor that misses bytes.
  int64_t before = -1;
  do {
    const int64_t arrived = arriving.TotalBytes() + arriving.arrived_values();
    if (arrived == before) return ServerBug("a fetch that ends early");
    before = arrived;
    const absl::Status status = runner.Run(options.deadline, "", [&](grpc::ClientContext& context) -> CallError {
      v1::FetchHandleRequest request;
      request.set_name(name);
      request.set_tensor(options.tensor);
      request.set_chunk_size(static_cast<int32_t>(options.chunk_bytes));
      *request.mutable_wait_for() = ToMessage(options.wait_for);
      const int missing = arriving.announced() ? arriving.FirstIncomplete() : -1;
      if (!arriving.missing_values().empty()) {
        request.set_tensor(arriving.missing_values().front());
      } else if (missing >= 0) {
        request.set_tensor(arriving.name(missing));
        request.set_offset(arriving.next_offset(missing));
      } else if (arriving.announced()) {
        return {};  // the break came after the last byte
      }
      auto stream = stub.FetchHandle(&context, request);
      return ReadAll(*stream, context, [&](v1::FetchHandleResponse& response) -> absl::Status {
        if (response.has_chunk()) return arriving.Add(response.chunk());
        if (response.has_value()) return arriving.AddValue(std::move(*response.mutable_value()));
        fetched.handle = std::move(*response.mutable_handle());
        arriving.AnnounceValues(fetched.handle.values(), options.tensor);
        return arriving.Announce(fetched.handle.tensors(), options.tensor);
      });
    });
    PENSTOCK_RETURN_IF_ERROR(status);
    if (!arriving.announced()) return ServerBug("a fetch without a handle");
  } while (arriving.FirstIncomplete() >= 0 || !arriving.missing_values().empty());
  fetched.tensors = arriving.Take();
  fetched.values = arriving.TakeValues();
  return fetched;
}

absl::StatusOr<ParameterDownload> DownloadParameters(CallRunner& runner, v1::StateService::Stub& stub,
                                                     const v1::ReadParametersRequest& request,
                                                     absl::Duration deadline) {
  ParameterDownload snapshot;
  Arriving arriving;
  const absl::Status status = runner.Run(deadline, "", [&](grpc::ClientContext& context) -> CallError {
    arriving.Forget();
    auto stream = stub.ReadParameters(&context, request);
    return ReadAll(*stream, context, [&](v1::ReadParametersResponse& response) -> absl::Status {
      if (response.has_chunk()) return arriving.Add(response.chunk());
      snapshot.step = response.start().step();
      return arriving.Announce(response.start().tensors(), "");
    });
  });
  PENSTOCK_RETURN_IF_ERROR(status);
  if (!arriving.announced()) return ServerBug("parameters without a start");
  if (arriving.FirstIncomplete() >= 0) return ServerBug("parameters that end early");
  snapshot.tensors = arriving.Take();
  return snapshot;
}

}  // namespace penstock
