#include "server/rpc/streams/tensor_uploads.h"

#include <algorithm>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/caller_share.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

int64_t TotalBytes(const std::vector<TensorHeader>& headers) {
  int64_t bytes = 0;
  for (const TensorHeader& header : headers) bytes += header.byte_size;
  return bytes;
}

std::string DigestOf(const std::vector<TensorHeader>& headers) {
  std::string text;
  for (const TensorHeader& header : headers) {
    absl::StrAppend(&text, header.name.size(), ":", header.name, " ", static_cast<int>(header.type), " ",
                    absl::StrJoin(header.shape, ","), " ", header.byte_size, ";");
  }
  return Sha256::Of(text);
}

absl::Status TakenOver(const std::string& request_id) {
  return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL",
               absl::StrCat("request_id: another stream goes on with this upload, got ", request_id))
      .With("field", "request_id")
      .With("value", request_id);
}

}  // namespace

// One upload.
class TensorUploads::Upload {
 public:
  Upload(Key key, std::string request_id, HandleName name, std::vector<TensorHeader> headers, int64_t end_nanos)
      : key(std::move(key)),
        request_id(std::move(request_id)),
        name(std::move(name)),
        digest(DigestOf(headers)),
        bytes(TotalBytes(headers)),
        end_nanos(end_nanos),
        receiver(std::in_place, std::move(headers)) {}

  bool complete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return !receiver.has_value(); }
  // What its handle must hold while a stream with credit sends.
  int64_t BytesToHold() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return std::min(bytes, receiver->received_bytes() + kPutCreditBytes);
  }

  const Key key;
  const std::string request_id;
  const HandleName name;
  const std::string digest;  // of the headers
  const int64_t bytes;
  const int64_t end_nanos;

  absl::Mutex mu;
  UploadTurns turns ABSL_GUARDED_BY(mu);                       // over: forgotten
  bool kept ABSL_GUARDED_BY(mu) = false;                       // among those that are complete
  std::optional<TensorReceiver> receiver ABSL_GUARDED_BY(mu);  // until it is complete
};

absl::StatusOr<std::optional<TensorUploads::Hold>> TensorUploads::Join(const Key& key, const std::string& request_id,
                                                                       const std::string& digest) {
  std::shared_ptr<Upload> found;
  {
    absl::MutexLock lock(&mu_);
    if (auto it = uploads_.find(key); it != uploads_.end()) found = it->second;
  }
  if (found == nullptr) return std::optional<Hold>();
  {
    absl::MutexLock lock(&found->mu);
    if (!found->turns.over()) {
      if (found->digest != digest) {
        return Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                     "request_id: was used for other tensors, got " + request_id)
            .With("field", "request_id")
            .With("value", request_id);
      }
      if (!found->complete()) PENSTOCK_RETURN_IF_ERROR(handles_->Hold(found->name, found->BytesToHold()));
      return std::optional<Hold>(Hold{found, found->turns.Take(), found->end_nanos});
    }
  }
  RemoveFromMap(found);  // it goes; the next one may come
  return std::optional<Hold>();
}

absl::StatusOr<TensorUploads::Hold> TensorUploads::Attach(Request request) {
  const Key key = {request.caller, request.pipeline + " " + request.request_id};
  const std::string digest = DigestOf(request.headers);
  if (!request.request_id.empty()) {
    const absl::Status room = CheckRoom(request.caller);
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<Hold> known, Join(key, request.request_id, digest));
    if (known.has_value()) return *std::move(known);
    PENSTOCK_RETURN_IF_ERROR(room);
  }
  const int64_t bytes = TotalBytes(request.headers);
  const int64_t held = std::min(bytes, kPutCreditBytes);
  PENSTOCK_ASSIGN_OR_RETURN(const HandleName name, handles_->Reserve({.owner = request.caller,
                                                                      .pipeline = request.pipeline,
                                                                      .kind = HandleKind::kValue,
                                                                      .method = "PutTensors",
                                                                      .upload = true,
                                                                      .bytes = held,
                                                                      .later_bytes = bytes - held,
                                                                      .lease = request.lease}));
  absl::Cleanup withdraw = [&] { Guarded("the end of an upload", [&] { handles_->Withdraw(name.id); }).IgnoreError(); };
  const int64_t end_nanos = clock_->NowNanos() + absl::ToInt64Nanoseconds(kMaxAge);
  auto upload = std::make_shared<Upload>(key, request.request_id, name, std::move(request.headers), end_nanos);
  Hold hold{.upload = upload, .end_nanos = end_nanos};
  {
    absl::MutexLock lock(&upload->mu);
    hold.turn = upload->turns.Take();
    PENSTOCK_RETURN_IF_ERROR(upload->receiver->Start());
    if (upload->receiver->complete()) {  // nothing is to come
      handles_->Fulfil(name.id, upload->receiver->Take());
      upload->receiver.reset();
    }
  }
  while (!request.request_id.empty()) {
    {
      absl::MutexLock lock(&mu_);
      if (uploads_.try_emplace(key, upload).second) break;
    }
    // Another stream with the same id was faster: there is one upload, and this stream goes on with it.
    absl::StatusOr<std::optional<Hold>> other = Join(key, request.request_id, digest);
    if (other.ok() && !other->has_value()) continue;
    if (!other.ok()) return other.status();
    return **std::move(other);
  }
  std::move(withdraw).Cancel();
  return hold;
}

void TensorUploads::RemoveFromMap(const std::shared_ptr<Upload>& upload) {
  absl::MutexLock lock(&mu_);
  const auto found = uploads_.find(upload->key);
  if (found != uploads_.end() && found->second == upload) uploads_.erase(found);
}

absl::StatusOr<TensorUploads::Position> TensorUploads::Where(const Hold& hold) {
  Upload& upload = *hold.upload;
  absl::MutexLock lock(&upload.mu);
  if (!upload.turns.Has(hold.turn)) return TakenOver(upload.request_id);
  if (upload.complete()) return Position{.complete = true};
  return Position{upload.receiver->next_tensor(), upload.receiver->next_offset(), false};
}

absl::StatusOr<TensorUploads::Position> TensorUploads::Add(const Hold& hold, const ChunkMessage& chunk) {
  Upload& upload = *hold.upload;
  NamedTensors tensors;
  {
    absl::MutexLock lock(&upload.mu);
    if (!upload.turns.Has(hold.turn)) return TakenOver(upload.request_id);
    if (upload.complete()) return Position{.complete = true};
    PENSTOCK_RETURN_IF_ERROR(upload.receiver->Add(chunk.tensor, chunk.offset, chunk.data, chunk.checksum));
    if (!upload.receiver->complete()) {
      PENSTOCK_RETURN_IF_ERROR(handles_->Hold(upload.name, upload.BytesToHold()));
      return Position{upload.receiver->next_tensor(), upload.receiver->next_offset(), false};
    }
    tensors = upload.receiver->Take();
    upload.receiver.reset();
  }
  handles_->Fulfil(upload.name.id, std::move(tensors));
  return Position{.complete = true};
}

void TensorUploads::Detach(const Hold& hold) {
  Upload& upload = *hold.upload;
  bool resumable;
  {
    absl::MutexLock lock(&mu_);
    const auto found = uploads_.find(upload.key);
    resumable = found != uploads_.end() && found->second == hold.upload;
  }
  bool complete;
  bool kept = resumable;
  {
    absl::MutexLock lock(&upload.mu);
    if (!upload.turns.Has(hold.turn)) return;
    complete = upload.complete();
    if (complete) {
      if (std::exchange(upload.kept, true)) return;
    } else {
      // Nobody has credit now. A handle that was released meanwhile holds nothing, and what has come is of no use.
      kept &= handles_->Hold(upload.name, upload.receiver->received_bytes()).ok();
      kept &= clock_->NowNanos() < upload.end_nanos;
    }
  }
  if (!kept) {
    Forget(hold.upload, hold.turn);
  } else if (complete) {
    KeepComplete(hold.upload);
  } else {
    ForgetBroken(hold);
  }
}

HandleName TensorUploads::NameOf(const Hold& hold) const { return hold.upload->name; }

void TensorUploads::ForgetBroken(const Hold& hold) {
  timers_->Add(clock_->NowNanos() + absl::ToInt64Nanoseconds(kBrokenLife), [table = weak_from_this(), hold] {
    if (auto alive = table.lock(); alive != nullptr) alive->Forget(hold.upload, hold.turn);
  });
}

void TensorUploads::KeepComplete(const std::shared_ptr<Upload>& upload) {
  const int64_t until = clock_->NowNanos() + absl::ToInt64Nanoseconds(kCompleteLife);
  absl::MutexLock lock(&mu_);
  complete_.push_back({upload, until});
  ++complete_of_[upload->key.first];
}

absl::Status TensorUploads::CheckRoom(const std::string& caller) {
  const int64_t now = clock_->NowNanos();
  int64_t limit = static_cast<int64_t>(max_complete_);
  bool room;
  {
    absl::MutexLock lock(&mu_);
    while (!complete_.empty() && complete_.front().until_nanos <= now) {
      const std::shared_ptr<Upload> over = std::move(complete_.front().upload);
      complete_.pop_front();
      const auto own = complete_of_.find(over->key.first);
      if (--own->second == 0) complete_of_.erase(own);
      if (const auto found = uploads_.find(over->key); found != uploads_.end() && found->second == over) {
        uploads_.erase(found);
      }
    }
    room = complete_.size() < max_complete_;
    if (const auto own = complete_of_.find(caller); room && own != complete_of_.end()) {
      limit = CallerShare(limit, /*others=*/complete_of_.size() > 1);
      room = own->second < limit;
    }
  }
  if (room) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "REQUEST_LOG_FULL",
               "too many uploads with a request_id were completed in the last minutes")
      .With("limit_value", absl::StrCat(limit));
}

void TensorUploads::Forget(const std::shared_ptr<Upload>& upload, int64_t turn) {
  bool complete;
  {
    absl::MutexLock lock(&upload->mu);
    if (!upload->turns.Has(turn)) return;  // someone goes on with it
    upload->turns.End();
    complete = upload->complete();
  }
  RemoveFromMap(upload);
  if (!complete) handles_->Withdraw(upload->name.id);
}

void TensorUploads::Close() {
  std::map<Key, std::shared_ptr<Upload>> uploads;
  {
    absl::MutexLock lock(&mu_);
    uploads.swap(uploads_);
    complete_.clear();
    complete_of_.clear();
  }
  for (const auto& [key, upload] : uploads) {
    bool withdraw;
    {
      absl::MutexLock lock(&upload->mu);
      withdraw = !upload->complete() && !upload->turns.over();
      upload->turns.End();
    }
    if (withdraw) handles_->Withdraw(upload->name.id);
  }
}

}  // namespace penstock
