#include "server/rpc/streams/tensor_uploads.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/caller_share.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

int64_t TotalBytes(const std::vector<TensorHeader>& headers) {
  int64_t bytes = 0;
  for (const TensorHeader& header : headers) bytes += header.byte_size;
  return bytes;
}

absl::Status TakenOver() {
  return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL", "another stream goes on with this upload");
}

}  // namespace

// One upload.
class TensorUploads::Upload {
 public:
  Upload(Key key, HandleName name, std::vector<TensorHeader> headers, int64_t end_nanos)
      : key(std::move(key)),
        name(std::move(name)),
        bytes(TotalBytes(headers)),
        end_nanos(end_nanos),
        receiver(std::move(headers)) {}

  // What its handle must hold while a stream with credit sends.
  int64_t BytesToHold() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return std::min(bytes, receiver.received_bytes() + kPutCreditBytes);
  }

  const Key key;
  const HandleName name;
  const int64_t bytes;
  const int64_t end_nanos;

  absl::Mutex mu;
  int64_t generation ABSL_GUARDED_BY(mu) = 0;  // rises with each stream that takes it
  bool complete ABSL_GUARDED_BY(mu) = false;
  bool forgotten ABSL_GUARDED_BY(mu) = false;
  TensorReceiver receiver ABSL_GUARDED_BY(mu);
};

absl::StatusOr<TensorUploads::Hold> TensorUploads::Attach(Request request) {
  const Key key = {request.caller, request.pipeline + " " + request.request_id};
  if (!request.request_id.empty()) {
    const absl::Status room = CheckRoom(request.caller);
    std::shared_ptr<Upload> found;
    {
      absl::MutexLock lock(&mu_);
      if (auto it = uploads_.find(key); it != uploads_.end()) found = it->second;
    }
    if (found != nullptr) {
      absl::MutexLock lock(&found->mu);
      if (!found->forgotten) {
        if (found->receiver.headers() != request.headers) {
          return Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                       "request_id: was used for other tensors, got " + request.request_id)
              .With("field", "request_id")
              .With("value", request.request_id);
        }
        if (!found->complete) PENSTOCK_RETURN_IF_ERROR(handles_->Hold(found->name, found->BytesToHold()));
        return Hold{found, ++found->generation, found->end_nanos};
      }
    }
    PENSTOCK_RETURN_IF_ERROR(room);
  }
  const int64_t bytes = TotalBytes(request.headers);
  const int64_t held = std::min(bytes, kPutCreditBytes);
  PENSTOCK_ASSIGN_OR_RETURN(const HandleName name, handles_->Reserve({.owner = request.caller,
                                                                      .pipeline = request.pipeline,
                                                                      .kind = HandleKind::kValue,
                                                                      .method = "PutTensors",
                                                                      .bytes = held,
                                                                      .later_bytes = bytes - held,
                                                                      .lease = request.lease}));
  const int64_t end_nanos = clock_->NowNanos() + absl::ToInt64Nanoseconds(kMaxAge);
  auto upload = std::make_shared<Upload>(key, name, std::move(request.headers), end_nanos);
  Hold hold{upload, 1, end_nanos};
  bool complete;
  {
    absl::MutexLock lock(&upload->mu);
    upload->generation = 1;
    if (absl::Status started = upload->receiver.Start(); !started.ok()) {
      handles_->Withdraw(name.id);
      return started;
    }
    complete = upload->complete = upload->receiver.complete();
    if (complete) handles_->Fulfil(name.id, upload->receiver.Take());
  }
  if (!request.request_id.empty()) {
    absl::MutexLock lock(&mu_);
    uploads_[key] = upload;
  }
  return hold;
}

absl::StatusOr<TensorUploads::Position> TensorUploads::Where(const Hold& hold) {
  absl::MutexLock lock(&hold.upload->mu);
  if (hold.upload->generation != hold.generation) return TakenOver();
  return Position{hold.upload->receiver.next_tensor(), hold.upload->receiver.next_offset(), hold.upload->complete};
}

absl::StatusOr<TensorUploads::Position> TensorUploads::Add(const Hold& hold, const ChunkMessage& chunk) {
  Upload& upload = *hold.upload;
  NamedTensors tensors;
  {
    absl::MutexLock lock(&upload.mu);
    if (upload.generation != hold.generation || upload.forgotten) return TakenOver();
    PENSTOCK_RETURN_IF_ERROR(upload.receiver.Add(chunk.tensor, chunk.offset, chunk.data, chunk.checksum));
    if (!upload.receiver.complete()) {
      PENSTOCK_RETURN_IF_ERROR(handles_->Hold(upload.name, upload.BytesToHold()));
      return Position{upload.receiver.next_tensor(), upload.receiver.next_offset(), false};
    }
    upload.complete = true;
    tensors = upload.receiver.Take();
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
    if (upload.generation != hold.generation) return;
    complete = upload.complete;
    if (!complete) {
      // Nobody has credit now. A handle that was released meanwhile holds nothing, and what has come is of no use.
      kept &= handles_->Hold(upload.name, upload.receiver.received_bytes()).ok();
      kept &= clock_->NowNanos() < upload.end_nanos;
    }
  }
  if (!kept) {
    Forget(hold.upload, hold.generation);
  } else if (complete) {
    KeepComplete(hold);
  } else {
    ForgetBroken(hold);
  }
}

HandleName TensorUploads::NameOf(const Hold& hold) const { return hold.upload->name; }

void TensorUploads::ForgetBroken(const Hold& hold) {
  timers_->Add(clock_->NowNanos() + absl::ToInt64Nanoseconds(kBrokenLife), [table = weak_from_this(), hold] {
    if (auto alive = table.lock(); alive != nullptr) alive->Forget(hold.upload, hold.generation);
  });
}

void TensorUploads::KeepComplete(const Hold& hold) {
  const int64_t until = clock_->NowNanos() + absl::ToInt64Nanoseconds(kCompleteLife);
  absl::MutexLock lock(&mu_);
  complete_.push_back({hold, until});
  ++complete_of_[hold.upload->key.first];
}

absl::Status TensorUploads::CheckRoom(const std::string& caller) {
  const int64_t now = clock_->NowNanos();
  std::vector<Hold> over;
  int64_t limit = static_cast<int64_t>(most_complete_);
  bool room;
  {
    absl::MutexLock lock(&mu_);
    while (!complete_.empty() && complete_.front().until_nanos <= now) {
      over.push_back(std::move(complete_.front().hold));
      complete_.pop_front();
      const auto own = complete_of_.find(over.back().upload->key.first);
      if (--own->second == 0) complete_of_.erase(own);
    }
    room = complete_.size() < most_complete_;
    if (const auto own = complete_of_.find(caller); room && own != complete_of_.end()) {
      limit = CallerShare(limit, /*others=*/complete_of_.size() > 1);
      room = own->second < limit;
    }
  }
  for (const Hold& one : over) Forget(one.upload, one.generation);
  if (room) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "REQUEST_LOG_FULL",
               "too many uploads with a request_id were completed in the last minutes")
      .With("limit_value", absl::StrCat(limit));
}

void TensorUploads::Forget(const std::shared_ptr<Upload>& upload, int64_t generation) {
  bool complete;
  {
    absl::MutexLock lock(&upload->mu);
    if (upload->generation != generation || upload->forgotten) return;  // someone goes on with it
    upload->forgotten = true;
    complete = upload->complete;
  }
  {
    absl::MutexLock lock(&mu_);
    const auto found = uploads_.find(upload->key);
    if (found != uploads_.end() && found->second == upload) uploads_.erase(found);
  }
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
      withdraw = !upload->complete && !upload->forgotten;
      upload->forgotten = true;
    }
    if (withdraw) handles_->Withdraw(upload->name.id);
  }
}

}  // namespace penstock
