#include "client/lib/tensor_upload.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/lib/durations.h"
#include "client/lib/request_id.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/chunker.h"

namespace penstock {
namespace {

// One attempt of an upload.
//
// Model:     how many bytes may still be sent, and which chunk comes next. Both are the server's to say at the start.
// Threads:   one. Writing without reading is safe: credit bounds how many messages wait for us meanwhile.
class Upload {
 public:
  using Stream = grpc::ClientReaderWriter<v1::PutTensorsRequest, v1::PutTensorsResponse>;

  Upload(Stream* stream, std::span<const HostTensor> tensors, int64_t chunk_bytes)
      : stream_(stream), tensors_(tensors), chunk_bytes_(chunk_bytes) {}

  // Sends everything. False: the stream broke, its status says why. An error: the server broke the protocol.
  absl::StatusOr<bool> SendAll(const v1::PutTensorsRequest& start) {
    if (!stream_->Write(start)) return false;
    PENSTOCK_ASSIGN_OR_RETURN(const bool open, ReadCredit());
    if (!open || handle_.has_value()) return open;
    PENSTOCK_RETURN_IF_ERROR(Position());
    for (; tensor_ < static_cast<int>(tensors_.size()); ++tensor_, offset_ = 0) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool sent, SendTensor());
      if (!sent) return false;
      if (handle_.has_value()) return true;
    }
    return stream_->WritesDone();
  }

  // Reads up to the handle, which ends a good upload.
  absl::StatusOr<bool> AwaitHandle() {
    while (!handle_.has_value()) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool open, ReadCredit());
      if (!open) return false;
    }
    return true;
  }

  const std::optional<v1::Handle>& handle() const { return handle_; }

 private:
  absl::StatusOr<bool> ReadCredit() {
    v1::PutTensorsResponse response;
    if (!stream_->Read(&response)) return false;
    if (response.has_handle()) {
      handle_ = std::move(*response.mutable_handle());
      return true;
    }
    if (!response.has_credit() || response.credit().bytes() < 0) {
      return Error(absl::StatusCode::kInternal, "BUG", "the server sent neither credit nor a handle");
    }
    credit_ += response.credit().bytes();
    if (!positioned_) {
      tensor_ = response.credit().next_tensor();
      offset_ = response.credit().next_offset();
      positioned_ = true;
    }
    return true;
  }

  absl::Status Position() const {
    const int count = static_cast<int>(tensors_.size());
    const bool inside =
        tensor_ >= 0 && tensor_ < count && offset_ >= 0 && offset_ <= tensors_[tensor_].header().byte_size;
    if (inside || (tensor_ == count && offset_ == 0)) return absl::OkStatus();
    return Error(absl::StatusCode::kInternal, "BUG",
                 absl::StrCat("the server asks for tensor ", tensor_, " at ", offset_, ", which was not announced"));
  }

  absl::StatusOr<bool> SendTensor() {
    const std::string_view bytes = tensors_[tensor_].bytes();
    Chunker chunker(bytes, chunk_bytes_, {offset_, static_cast<int64_t>(bytes.size())});
    while (std::optional<Chunk> chunk = chunker.Next()) {
      while (credit_ < static_cast<int64_t>(chunk->bytes.size())) {
        PENSTOCK_ASSIGN_OR_RETURN(const bool open, ReadCredit());
        if (!open) return false;
        if (handle_.has_value()) return true;
      }
      v1::PutTensorsRequest request;
      v1::TensorChunk* message = request.mutable_chunk();
      message->set_tensor(tensor_);
      message->set_offset(chunk->offset);
      message->set_data(chunk->bytes.data(), chunk->bytes.size());
      message->set_crc32c(chunk->checksum);
      credit_ -= static_cast<int64_t>(chunk->bytes.size());
      if (!stream_->Write(request)) return false;
    }
    return true;
  }

  Stream* const stream_;
  const std::span<const HostTensor> tensors_;
  const int64_t chunk_bytes_;
  int64_t credit_ = 0;
  bool positioned_ = false;
  int tensor_ = 0;
  int64_t offset_ = 0;
  std::optional<v1::Handle> handle_;
};

}  // namespace

absl::StatusOr<v1::Handle> UploadTensors(CallRunner& runner, v1::HandleService::Stub& stub, const std::string& pipeline,
                                         std::span<const HostTensor> tensors, const UploadOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t chunk_bytes, CheckedChunkBytes(options.chunk_bytes));
  v1::PutTensorsRequest request;
  v1::PutStart* start = request.mutable_start();
  start->set_pipeline(pipeline);
  start->set_request_id(options.request_id.empty() ? NewRequestId() : options.request_id);
  if (options.lease > absl::ZeroDuration()) *start->mutable_lease() = ToMessage(options.lease);
  for (const HostTensor& tensor : tensors) *start->add_tensors() = HostTensor::HeaderToMessage(tensor.header());

  v1::Handle handle;
  const absl::Status status =
      runner.Run(options.deadline, start->request_id(), [&](grpc::ClientContext& context) -> CallError {
        auto stream = stub.PutTensors(&context);
        Upload upload(stream.get(), tensors, chunk_bytes);
        absl::StatusOr<bool> open = upload.SendAll(request);
        if (open.ok() && *open) open = upload.AwaitHandle();
        if (!open.ok()) context.TryCancel();
        if (open.ok() && *open) {
          handle = *upload.handle();
          // The handle is the whole answer: a status lost behind it changes nothing. Finish() needs the rest read.
          v1::PutTensorsResponse rest;
          while (stream->Read(&rest)) {
          }
          stream->Finish().ok();
          return {};
        }
        // After a failed write the reasons wait behind messages that were not read.
        v1::PutTensorsResponse rest;
        while (stream->Read(&rest)) {
        }
        const grpc::Status ended = stream->Finish();
        if (!open.ok()) return {open.status(), {}, true};
        if (ended.ok()) {
          return {Error(absl::StatusCode::kInternal, "BUG", "the server ended the upload without a handle"), {}, true};
        }
        return DecodeCallError(ended, context);
      });
  if (!status.ok()) return status;
  return handle;
}

}  // namespace penstock
