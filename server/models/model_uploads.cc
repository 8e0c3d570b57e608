#include "server/models/model_uploads.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/caller_share.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/wire/checksum.h"
#include "engine/wire/chunker.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

constexpr char kPrefix[] = ".upload-";
constexpr char kSuffix[] = ".part";

absl::Status ChunkError(const std::string& problem, int64_t value) {
  return Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE", absl::StrCat("chunk: ", problem, ", got ", value))
      .With("field", "chunk")
      .With("value", absl::StrCat(value));
}

absl::Status CheckChunk(int64_t offset, int64_t size, int64_t next, int64_t all) {
  if (offset != next) return ChunkError(absl::StrCat("must go on at offset ", next), offset);
  if (size < 1 || size > kMaximumChunkBytes) {
    return ChunkError(absl::StrCat("must have 1 to ", kMaximumChunkBytes, " bytes"), size);
  }
  if (size > all - next) return ChunkError(absl::StrCat("must end with the file, ", all - next, " bytes on"), size);
  if (size < kMinimumChunkBytes && size != all - next) {
    return ChunkError(absl::StrCat("must have at least ", kMinimumChunkBytes, " bytes, but for the last"), size);
  }
  return absl::OkStatus();
}

}  // namespace

class ModelUploads::Upload {
 public:
  Upload(Request request, std::string path, int64_t end_nanos)
      : request(std::move(request)), path(std::move(path)), end_nanos(end_nanos) {}

  Key key() const { return {request.caller, request.model, request.bytes, request.digest}; }

  const Request request;
  const std::string path;
  const int64_t end_nanos;
  UploadTurns turns;   // over: it is a model, or nothing
  int64_t offset = 0;  // bytes that stand in the file
  Sha256 digest;
  std::unique_ptr<WritableFile> file;
};

absl::StatusOr<std::unique_ptr<ModelUploads>> ModelUploads::Create(ModelRoot* root, std::shared_ptr<JobThread> jobs,
                                                                   TimerQueue* timers, Clock* clock) {
  FileSystem* files = root->options().files;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(root->options().root));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kPrefix) || !absl::EndsWith(name, kSuffix)) continue;
    PENSTOCK_RETURN_IF_ERROR(files->RemoveAll(root->PathOf(name)));
  }
  return std::unique_ptr<ModelUploads>(new ModelUploads(root, std::move(jobs), timers, clock));
}

ModelUploads::~ModelUploads() { Close(); }

absl::Status ModelUploads::CheckRoom(const Request& request) {
  const auto full = [&](const char* reason, const std::string& problem, int64_t limit) {
    return Error(absl::StatusCode::kResourceExhausted, reason,
                 absl::StrCat("model: ", problem, ", got ", request.model))
        .With("model", request.model)
        .With("value", request.model)
        .With("limit_value", absl::StrCat(limit));
  };
  if (uploads_.size() >= kMaxUploads) {
    return full("STREAM_LIMIT", absl::StrCat("at most ", kMaxUploads, " uploads may be open at once"), kMaxUploads);
  }
  const auto own = std::count_if(uploads_.begin(), uploads_.end(),
                                 [&](const auto& entry) { return entry.second->request.caller == request.caller; });
  const bool others = own < static_cast<int64_t>(uploads_.size());
  const int64_t share = CallerShare(kMaxUploads, others);
  if (own > 0 && own >= share) {
    return full("CALLER_QUOTA", absl::StrCat("a caller may have at most ", share, " uploads open at once"), share);
  }
  PENSTOCK_ASSIGN_OR_RETURN(auto usage, root_->Usage());
  if (usage.second >= kMaxModels) {
    return full("STORAGE_FULL", absl::StrCat("at most ", kMaxModels, " models may be in the root; delete one"),
                kMaxModels);
  }
  const int64_t most = root_->options().max_root_bytes;
  int64_t announced = 0;
  for (const auto& [key, upload] : uploads_) {
    if (upload->request.caller == request.caller) announced += upload->request.bytes;
  }
  const int64_t bytes_share = CallerShare(std::max<int64_t>(most - usage.first, 0), others);
  if (own > 0 && request.bytes > bytes_share - announced) {
    return full("CALLER_QUOTA",
                absl::StrCat("a caller may have uploads of at most ", bytes_share, " bytes open at once, ", announced,
                             " are announced"),
                bytes_share);
  }
  for (const auto& [key, upload] : uploads_) usage.first += upload->request.bytes;
  if (request.bytes > most - usage.first) {
    return full("STORAGE_FULL",
                absl::StrCat("all models together may have ", most, " bytes (--model-root-bytes), ", usage.first,
                             " are taken; delete one"),
                most);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelUploads::Position> ModelUploads::Start(const Request& request, Hold* hold) {
  PENSTOCK_RETURN_IF_ERROR(CheckModelName(request.model, "model_id"));
  if (request.bytes < 1) return InvalidField("byte_size", "must be positive", absl::StrCat(request.bytes));
  if (!Sha256::IsDigest(request.digest)) {
    return InvalidField("digest", "must be sha256: and 64 lower-case hex digits", Shortened(request.digest));
  }
  PENSTOCK_RETURN_IF_ERROR(root_->HoldMemory(request.model, request.bytes, request.caller).status());
  if (files()->Info(root_->PathOf(request.model)).ok()) {
    absl::StatusOr<ModelDescription> there = root_->Describe(request.model);
    if (there.ok() && there->digest == request.digest) return Position{.offset = there->bytes, .model = *there};
    if (ReasonOf(there.status()) == "HOST_MEMORY") return there.status();  // nobody knows what it is
    return Error(absl::StatusCode::kAlreadyExists, "MODEL_EXISTS",
                 absl::StrCat("model_id: another file has this name; delete it first, got ", request.model))
        .With("field", "model_id")
        .With("value", request.model);
  }
  const auto found = uploads_.find({request.caller, request.model, request.bytes, request.digest});
  if (found != uploads_.end()) {
    *hold = {found->second, found->second->turns.Take(), found->second->end_nanos};
    return Position{.offset = found->second->offset, .model = {}};
  }
  PENSTOCK_RETURN_IF_ERROR(CheckRoom(request));
  const std::string path = root_->PathOf(absl::StrCat(kPrefix, next_number_++, kSuffix));
  const int64_t end_nanos = clock_->NowNanos() + absl::ToInt64Nanoseconds(kMaxAge);
  auto upload = std::make_shared<Upload>(request, path, end_nanos);
  PENSTOCK_ASSIGN_OR_RETURN(upload->file, files()->Create(path));
  uploads_[upload->key()] = upload;
  const int64_t turn = upload->turns.Take();
  *hold = {std::move(upload), turn, end_nanos};
  return Position{};
}

absl::StatusOr<ModelUploads::Position> ModelUploads::Add(const Hold& hold, int64_t offset, const std::string& data,
                                                         uint32_t checksum) {
  Upload& upload = *hold.upload;
  if (!upload.turns.Has(hold.turn)) {
    return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL",
                 absl::StrCat("message: another stream goes on with this upload, got ", upload.request.model))
        .With("field", "message")
        .With("value", upload.request.model);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckChunk(offset, static_cast<int64_t>(data.size()), upload.offset, upload.request.bytes));
  if (Crc32c(data) != checksum) {
    return Error(absl::StatusCode::kDataLoss, "CHUNK_CHECKSUM",
                 absl::StrCat("chunk: does not have its checksum; send it again, got offset ", offset))
        .With("field", "chunk")
        .With("value", absl::StrCat(offset));
  }
  if (absl::Status written = upload.file->Append(data); !written.ok()) {
    Forget(hold.upload);  // a part of the chunk may stand there
    return written;
  }
  upload.digest.Update(data);
  upload.offset += static_cast<int64_t>(data.size());
  if (upload.offset < upload.request.bytes) return Position{.offset = upload.offset, .model = {}};
  absl::StatusOr<ModelDescription> model = Finish(upload);
  Forget(hold.upload);
  if (!model.ok()) {
    LogWarning("model refused", {{"model", upload.request.model},
                                 {"reason", ReasonOf(model.status())},
                                 {"error", std::string(model.status().message())}});
    return WithValue(model.status(), "model", upload.request.model);
  }
  LogInfo("model added", {{"model", model->name}, {"bytes", absl::StrCat(model->bytes)}, {"digest", model->digest}});
  return Position{.offset = upload.offset, .model = *std::move(model)};
}

absl::StatusOr<ModelDescription> ModelUploads::Finish(Upload& upload) {
  const Request& request = upload.request;
  const std::string digest = upload.digest.Finish();
  if (digest != request.digest) {
    return Error(absl::StatusCode::kDataLoss, "MODEL_DIGEST",
                 absl::StrCat("digest: what came is not what was announced, ", request.digest, ", got ", digest))
        .With("field", "digest")
        .With("value", digest);
  }
  PENSTOCK_RETURN_IF_ERROR(upload.file->Sync());
  PENSTOCK_RETURN_IF_ERROR(upload.file->Close());
  PENSTOCK_ASSIGN_OR_RETURN(const MemoryReservation held,
                            root_->HoldMemory(upload.request.model, upload.request.bytes, upload.request.caller));
  PENSTOCK_ASSIGN_OR_RETURN(std::string bytes, files()->Read(upload.path));
  PENSTOCK_ASSIGN_OR_RETURN(ModelDescription model, root_->Inspect(std::move(bytes)));
  if (model.digest != request.digest) {
    return Error(absl::StatusCode::kDataLoss, "MODEL_DIGEST", "digest: the disk gave back something else")
        .With("field", "digest")
        .With("value", model.digest);
  }
  const std::string path = root_->PathOf(request.model);
  if (files()->Info(path).ok()) {
    return Error(absl::StatusCode::kAlreadyExists, "MODEL_EXISTS",
                 absl::StrCat("model_id: a file has come by this name meanwhile, got ", request.model))
        .With("field", "model_id")
        .With("value", request.model);
  }
  if (absl::Status renamed = files()->Rename(upload.path, path); !renamed.ok()) {
    // The rename may have happened, and only its sync failed.
    files()->RemoveAll(path).IgnoreError();
    return renamed;
  }
  return root_->Describe(request.model);
}

void ModelUploads::Forget(const std::shared_ptr<Upload>& upload) {
  upload->turns.End();
  upload->file.reset();
  uploads_.erase(upload->key());
  if (absl::Status removed = files()->RemoveAll(upload->path); !removed.ok()) {
    LogError("can't remove a broken upload", {{"error", std::string(removed.message())}});
  }
}

void ModelUploads::Detach(const Hold& hold) {
  if (hold.upload == nullptr || !hold.upload->turns.Has(hold.turn)) return;
  if (clock_->NowNanos() >= hold.end_nanos) return Forget(hold.upload);
  const auto forget = [this, hold, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || !hold.upload->turns.Has(hold.turn)) return;
    Forget(hold.upload);
  };
  timers_->Add(clock_->NowNanos() + absl::ToInt64Nanoseconds(kBrokenLife),
               [jobs = jobs_, forget] { jobs->Post(forget); });
}

void ModelUploads::Close() {
  while (!uploads_.empty()) Forget(std::shared_ptr<Upload>(uploads_.begin()->second));
}

}  // namespace penstock
