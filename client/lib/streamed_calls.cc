#include "client/lib/streamed_calls.h"

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace penstock {
namespace {

struct Waiting {
  absl::Notification done;
  CallError error;
  v1::StreamWorkResponse response;
};

}  // namespace

// One stream from its start to its end.
//
// Owns:      itself, until gRPC is done with it; a hold until no write can start any more.
// Lifecycle: AwaitEnd() before its last share goes: a context that ends on a thread of gRPC may be the last of a channel,
//            which can't end there.
class StreamedCalls::Stream final : public grpc::ClientBidiReactor<v1::StreamWorkRequest, v1::StreamWorkResponse>,
                                    public std::enable_shared_from_this<Stream> {
 public:
  void Begin(v1::WorkService::Stub* stub, const std::function<void(grpc::ClientContext*)>& prepare) {
    self_ = shared_from_this();
    prepare(&context_);
    stub->async()->StreamWork(&context_, this);
    AddHold();  // writes are started from other threads than the reactions'
    StartRead(&read_);
    StartCall();
  }

  bool ended() {
    absl::MutexLock lock(&mu_);
    return ended_;
  }

  // Sends the request once there is room. False: the deadline has passed, or the stream has ended, before it was.
  bool Send(v1::StreamWorkRequest request, const std::shared_ptr<Waiting>& waiting, absl::Time deadline,
            uint64_t* tag) {
    {
      absl::MutexLock lock(&mu_);
      const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || waiting_.size() < most_; };
      if (!room() && !mu_.AwaitWithDeadline(absl::Condition(&room), deadline)) return false;
      if (ended_) return false;
      *tag = ++last_tag_;
      waiting_.emplace(*tag, waiting);
      request.set_tag(*tag);
      writes_.push_back(std::move(request));
    }
    Write();
    return true;
  }

  // The call is given up: an answer that comes after all is dropped.
  void GiveUp(uint64_t tag) {
    {
      absl::MutexLock lock(&mu_);
      if (ended_ || waiting_.find(tag) == waiting_.end()) return;
      // Its place is free once the daemon has answered.
      waiting_[tag] = std::make_shared<Waiting>();
      writes_.emplace_back();
      writes_.back().set_tag(tag);
      writes_.back().mutable_cancel();
    }
    Write();
  }

  void Cancel() { context_.TryCancel(); }
  void AwaitEnd() { over_->WaitForNotification(); }
  // How the stream has ended.
  CallError end() {
    absl::MutexLock lock(&mu_);
    return end_;
  }

 private:
  // Starts the next write, unless one is under way.
  void Write() {
    grpc::WriteOptions options;
    {
      absl::MutexLock lock(&mu_);
      if (writing_ || ending_ || writes_.empty()) return;
      writing_ = true;
      write_ = std::move(writes_.front());
      writes_.pop_front();
      if (!writes_.empty()) options.set_buffer_hint();  // they leave together
    }
    StartWrite(&write_, options);
  }

  void OnWriteDone(bool ok) override {
    bool last;
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      last = ending_;
    }
    if (last) return RemoveHold();
    if (ok) Write();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // the end has come, or will
      bool last;
      {
        absl::MutexLock lock(&mu_);
        ending_ = true;
        last = !writing_;
      }
      if (last) RemoveHold();
      return;
    }
    std::shared_ptr<Waiting> answered;
    {
      absl::MutexLock lock(&mu_);
      if (read_.has_opened()) most_ = read_.opened().requests();
      if (const auto found = waiting_.find(read_.tag()); found != waiting_.end()) {
        answered = std::move(found->second);
        waiting_.erase(found);
      }
    }
    if (answered != nullptr) {
      if (read_.has_error()) answered->error = DecodeMessageError(read_.error());
      answered->response.Swap(&read_);
      answered->done.Notify();
    }
    read_.Clear();
    StartRead(&read_);
  }

  void OnDone(const grpc::Status& status) override {
    std::map<uint64_t, std::shared_ptr<Waiting>> waiting;
    CallError error = DecodeCallError(status, context_);
    // That the server has ended it is no answer to what was asked.
    if (error.ok()) error.status = absl::UnavailableError("the stream has ended");
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      end_ = error;
      waiting.swap(waiting_);
    }
    for (const auto& [tag, one] : waiting) {
      one->error = error;
      one->done.Notify();
    }
    const std::shared_ptr<absl::Notification> over = over_;
    self_.reset();
    over->Notify();
  }

  grpc::ClientContext context_;
  std::shared_ptr<Stream> self_;
  const std::shared_ptr<absl::Notification> over_ = std::make_shared<absl::Notification>();
  v1::StreamWorkResponse read_;
  v1::StreamWorkRequest write_;  // while writing_

  absl::Mutex mu_;
  size_t most_ ABSL_GUARDED_BY(mu_) = 0;  // requests at a time, once the daemon has said so
  uint64_t last_tag_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::shared_ptr<Waiting>> waiting_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::StreamWorkRequest> writes_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;  // no write may start any more
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  CallError end_ ABSL_GUARDED_BY(mu_);
};

StreamedCalls::~StreamedCalls() {
  Cancel();
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->AwaitEnd();
}

std::shared_ptr<StreamedCalls::Stream> StreamedCalls::Open() {
  absl::MutexLock lock(&mu_);
  if (cancelled_) return nullptr;
  if (stream_ == nullptr || stream_->ended()) {
    if (stream_ != nullptr) stream_->AwaitEnd();
    stream_ = std::make_shared<Stream>();
    stream_->Begin(stub_, prepare_);
  }
  return stream_;
}

CallError StreamedCalls::Call(const grpc::ClientContext& context, v1::StreamWorkRequest request,
                              v1::StreamWorkResponse* response) {
  const std::shared_ptr<Stream> stream = Open();
  if (stream == nullptr) return {CancelledByClient(), {}, true};
  const absl::Time deadline = absl::FromChrono(context.deadline());
  const auto waiting = std::make_shared<Waiting>();
  uint64_t tag = 0;
  const bool sent = stream->Send(std::move(request), waiting, deadline, &tag);
  if (!sent && stream->ended()) return stream->end();
  if (!sent || !waiting->done.WaitForNotificationWithDeadline(deadline)) {
    if (sent) stream->GiveUp(tag);
    return {absl::DeadlineExceededError("Deadline Exceeded"), {}, false};
  }
  if (waiting->error.ok()) response->Swap(&waiting->response);
  return waiting->error;
}

void StreamedCalls::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  if (stream_ != nullptr) stream_->Cancel();  // only posts
}

}  // namespace penstock
