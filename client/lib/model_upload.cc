#include "client/lib/model_upload.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/wire/chunker.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

// One attempt of an upload.
//
// Threads:   the caller's writes; `ps-put-credit` reads meanwhile, so that neither side ever waits for the other to
//            read.
// Lifecycle: Run() once. Afterwards nothing is left to read and the stream may be finished.
class Attempt {
 public:
  using Stream = grpc::ClientReaderWriter<v1::UploadModelRequest, v1::UploadModelResponse>;

  Attempt(Stream* stream, grpc::ClientContext* context, std::string_view file, const ModelUploadOptions& options)
      : stream_(stream), context_(context), file_(file), options_(options) {}

  // OK with a model: done. OK without one: the stream ended, its status says why. Else the server broke the protocol.
  absl::Status Run(const v1::UploadModelRequest& start, int64_t chunk_bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    stream_->Write(start);
    {
      Thread reader("ps-put-credit", [this] { ReadAll(); });
      const absl::Status sent = SendAll(chunk_bytes);
      if (!sent.ok()) context_->TryCancel();
      reader.Join();
      if (!sent.ok()) return sent;
    }
    absl::MutexLock lock(&mu_);
    return broken_;
  }

  std::optional<v1::Model> model() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return model_;
  }

 private:
  void ReadAll() ABSL_LOCKS_EXCLUDED(mu_) {
    v1::UploadModelResponse response;
    while (stream_->Read(&response)) {
      absl::MutexLock lock(&mu_);
      if (response.has_model()) {
        model_ = std::move(*response.mutable_model());
      } else if (response.has_credit() && response.credit().bytes() >= 0) {
        credit_ += response.credit().bytes();
        if (!begin_.has_value()) begin_ = response.credit().next_offset();
      } else {
        broken_ = ServerBug("it sent neither credit nor a model");
        context_->TryCancel();
      }
    }
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }

  // Sends every chunk that the server misses. Stops early, without an error, when the stream has ended.
  absl::Status SendAll(int64_t chunk_bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    if (!AwaitCredit(0)) return absl::OkStatus();
    int64_t begin = 0;
    {
      absl::MutexLock lock(&mu_);
      begin = *begin_;
    }
    const auto size = static_cast<int64_t>(file_.size());
    if (begin < 0 || begin > size) return ServerBug(absl::StrCat("it asks for byte ", begin, " of ", size));
    Chunker chunker(file_, chunk_bytes, {begin, size});
    while (const std::optional<Chunk> chunk = chunker.Next()) {
      const auto bytes = static_cast<int64_t>(chunk->bytes.size());
      if (!AwaitCredit(bytes)) return absl::OkStatus();
      v1::UploadModelRequest request;
      request.mutable_chunk()->set_offset(chunk->offset);
      request.mutable_chunk()->set_data(chunk->bytes.data(), chunk->bytes.size());
      request.mutable_chunk()->set_crc32c(chunk->checksum);
      if (!stream_->Write(request)) return absl::OkStatus();
      if (options_.on_chunk) options_.on_chunk(chunk->offset + bytes);
    }
    stream_->WritesDone();
    return absl::OkStatus();
  }

  // Takes credit once it is there; false if the stream ended, or the model came, before.
  bool AwaitCredit(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return ended_ || model_.has_value() || (begin_.has_value() && credit_ >= bytes);
    };
    absl::MutexLock lock(&mu_, absl::Condition(&settled));
    if (ended_ || model_.has_value()) return false;
    credit_ -= bytes;
    return true;
  }

  Stream* const stream_;
  grpc::ClientContext* const context_;
  const std::string_view file_;
  const ModelUploadOptions& options_;

  mutable absl::Mutex mu_;
  int64_t credit_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<int64_t> begin_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Model> model_ ABSL_GUARDED_BY(mu_);
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<v1::Model> UploadModel(CallRunner& runner, v1::ModelService::Stub& stub, const std::string& id,
                                      std::string_view file, const ModelUploadOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t chunk_bytes, CheckedChunkBytes(options.chunk_bytes));
  v1::UploadModelRequest request;
  request.mutable_start()->set_model_id(id);
  request.mutable_start()->set_byte_size(static_cast<int64_t>(file.size()));
  request.mutable_start()->set_digest(Sha256::Of(file));

  v1::Model model;
  const absl::Status status = runner.Run(options.deadline, "", [&](grpc::ClientContext& context) -> CallError {
    auto stream = stub.UploadModel(&context);
    Attempt attempt(stream.get(), &context, file, options);
    const absl::Status run = attempt.Run(request, chunk_bytes);
    const grpc::Status ended = stream->Finish();
    if (!run.ok()) return {run, {}, true};
    if (attempt.model().has_value()) {
      // The model is the whole answer: a status lost behind it changes nothing.
      model = *attempt.model();
      return {};
    }
    if (ended.ok()) return {ServerBug("it ended the upload without a model"), {}, true};
    return DecodeCallError(ended, context);
  });
  if (!status.ok()) return status;
  return model;
}

}  // namespace penstock
