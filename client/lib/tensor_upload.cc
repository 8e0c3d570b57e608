#include "client/lib/tensor_upload.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/lib/durations.h"
#include "client/lib/request_id.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/wire/chunker.h"

namespace penstock {
namespace {

// One attempt of an upload.
//
// Model:     how many bytes may still be sent, and which chunk comes next. Both are the server's to say at the start.
// Threads:   the caller's writes; `ps-put-credit` reads meanwhile, so that neither side ever waits for the other to
//            read.
// Lifecycle: Run() once. Afterwards nothing is left to read and the stream may be finished.
class Upload {
 public:
  using Stream = grpc::ClientReaderWriter<v1::PutTensorsRequest, v1::PutTensorsResponse>;

  Upload(Stream* stream, grpc::ClientContext* context, std::span<const HostTensor> tensors, int64_t chunk_bytes)
      : stream_(stream), context_(context), tensors_(tensors), chunk_bytes_(chunk_bytes) {}

  // OK with a handle: done. OK without one: the stream ended, its status says why. Else the server broke the protocol.
  absl::Status Run(const v1::PutTensorsRequest& start) ABSL_LOCKS_EXCLUDED(mu_) {
    stream_->Write(start);
    {
      Thread reader("ps-put-credit", [this] { ReadAll(); });
      absl::Status sent = SendAll();
      if (!sent.ok()) context_->TryCancel();
      reader.Join();
      if (!sent.ok()) return sent;
    }
    absl::MutexLock lock(&mu_);
    return broken_;
  }

  std::optional<v1::Handle> handle() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return handle_;
  }

 private:
  void ReadAll() ABSL_LOCKS_EXCLUDED(mu_) {
    v1::PutTensorsResponse response;
    while (stream_->Read(&response)) {
      absl::MutexLock lock(&mu_);
      if (response.has_handle()) {
        handle_ = std::move(*response.mutable_handle());
      } else if (response.has_credit() && response.credit().bytes() >= 0) {
        credit_ += response.credit().bytes();
        if (!start_.has_value()) start_ = response.credit();
      } else {
        broken_ = ServerBug("it sent neither credit nor a handle");
        context_->TryCancel();
      }
    }
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }

  // Sends every chunk that the server misses. Stops early, without an error, when the stream has ended.
  absl::Status SendAll() ABSL_LOCKS_EXCLUDED(mu_) {
    if (!AwaitCredit(0)) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(const v1::PutCredit start, Start());
    int64_t offset = start.next_offset();
    for (int i = start.next_tensor(); i < static_cast<int>(tensors_.size()); ++i, offset = 0) {
      if (!SendTensor(i, offset)) return absl::OkStatus();
    }
    stream_->WritesDone();
    return absl::OkStatus();
  }

  bool SendTensor(int index, int64_t offset) ABSL_LOCKS_EXCLUDED(mu_) {
    const std::string_view bytes = tensors_[index].bytes();
    Chunker chunker(bytes, chunk_bytes_, {offset, static_cast<int64_t>(bytes.size())});
    while (std::optional<Chunk> chunk = chunker.Next()) {
      if (!AwaitCredit(static_cast<int64_t>(chunk->bytes.size()))) return false;
      v1::PutTensorsRequest request;
      v1::TensorChunk* message = request.mutable_chunk();
      message->set_tensor(index);
      message->set_offset(chunk->offset);
      message->set_data(chunk->bytes.data(), chunk->bytes.size());
      message->set_crc32c(chunk->checksum);
      if (!stream_->Write(request)) return false;
    }
    return true;
  }

  // Takes credit once it is there; false if the stream ended, or the handle came, before.
  bool AwaitCredit(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return ended_ || handle_.has_value() || (start_.has_value() && credit_ >= bytes);
    };
    absl::MutexLock lock(&mu_, absl::Condition(&settled));
    if (ended_ || handle_.has_value()) return false;
    credit_ -= bytes;
    return true;
  }

  // Where the server wants us to begin: a place inside what was announced.
  absl::StatusOr<v1::PutCredit> Start() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const int count = static_cast<int>(tensors_.size());
    const int tensor = start_->next_tensor();
    const int64_t offset = start_->next_offset();
    const bool inside = tensor >= 0 && tensor < count && offset >= 0 && offset <= tensors_[tensor].header().byte_size;
    if (inside || (tensor == count && offset == 0)) return *start_;
    return ServerBug(absl::StrCat("it asks for tensor ", tensor, " at ", offset, ", which was not announced"));
  }

  Stream* const stream_;
  grpc::ClientContext* const context_;
  const std::span<const HostTensor> tensors_;
  const int64_t chunk_bytes_;

  mutable absl::Mutex mu_;
  int64_t credit_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<v1::PutCredit> start_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Handle> handle_ ABSL_GUARDED_BY(mu_);
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
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
        Upload upload(stream.get(), &context, tensors, chunk_bytes);
        const absl::Status run = upload.Run(request);
        const grpc::Status ended = stream->Finish();
        if (!run.ok()) return {run, {}, true};
        if (upload.handle().has_value()) {
          // The handle is the whole answer: a status lost behind it changes nothing.
          handle = *upload.handle();
          return {};
        }
        if (ended.ok()) return {ServerBug("it ended the upload without a handle"), {}, true};
        return DecodeCallError(ended, context);
      });
  if (!status.ok()) return status;
  return handle;
}

}  // namespace penstock
