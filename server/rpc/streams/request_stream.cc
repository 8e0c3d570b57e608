#include "server/rpc/streams/request_stream.h"

#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/streamed_request.h"

namespace penstock {
namespace {

absl::Status Left(std::string_view how) {
  return Guarded("the stream",
                 [&]() -> absl::Status { return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", how); });
}

absl::Status Closing() { return Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing"); }

}  // namespace

RequestStream::RequestStream(RequestStreams* streams, const MethodGate& gate, const ServiceEnvironment& environment,
                             grpc::CallbackServerContext* context, Options options)
    : streams_(streams),
      gate_(gate),
      context_(context),
      options_(options),
      guard_(std::make_shared<StallGuard>(environment.timers, environment.clock, options.patience)) {}

void RequestStream::Begin() {
  self_ = shared_from_this();
  guard_->SetBusy(true);
  guard_->Watch(context_);
  const absl::Status entered = Guarded("the stream", [this]() -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const Identity identity, gate_.Enter(*context_));
    PENSTOCK_RETURN_IF_ERROR(streams_->Enter(shared_from_this(), identity.name));
    return Opened(identity);
  });
  if (!entered.ok()) return Break(entered);
  GoOn();
}

void RequestStream::OnReadDone(bool ok) {
  bool taking;
  {
    absl::MutexLock lock(&mu_);
    taking = taking_ = ok && !closed_;
  }
  const absl::Status taken = taking ? Guarded("the stream", [this] { return Take(read_); }) : absl::OkStatus();
  read_.Clear();
  {
    absl::MutexLock lock(&mu_);
    reading_ = taking_ = false;
    if (!ok) closed_ = true;
  }
  if (!taken.ok()) return Break(taken);
  if (!ok) {
    FailIncomplete(Guarded("the stream", []() -> absl::Status {
      return Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE", "the stream ended before the last chunk");
    }));
    Guarded("the stream", [this] { ReadEnded(); }).IgnoreError();
  }
  GoOn();
}

bool RequestStream::Closed() {
  absl::MutexLock lock(&mu_);
  return closed_;
}

void RequestStream::FailIncomplete(const absl::Status& status) {
  std::vector<std::shared_ptr<StreamedRequest>> incomplete;
  Guarded("the stream", [&] {
    absl::MutexLock lock(&mu_);
    for (const Entry& entry : open_) {
      auto request = entry.request.lock();
      if (request != nullptr && request->incomplete()) incomplete.push_back(std::move(request));
    }
  }).IgnoreError();
  for (const auto& request : incomplete) request->Fail(status);
}

bool RequestStream::Open(const std::shared_ptr<StreamedRequest>& request) {
  std::list<Entry> one;
  one.push_back({.number = request->number(), .request = request});
  {
    absl::MutexLock lock(&mu_);
    if (!broken_) {
      if (!by_number_.try_emplace(request->number(), one.begin()).second) return false;
      open_.splice(open_.end(), one);
      return true;
    }
  }
  request->Cancel("the stream has ended");
  return true;
}

bool RequestStream::Knows(uint64_t number) {
  absl::MutexLock lock(&mu_);
  return by_number_.contains(number);
}

std::shared_ptr<StreamedRequest> RequestStream::Find(uint64_t number) {
  absl::MutexLock lock(&mu_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second->request.lock();
}

size_t RequestStream::Waiting() {
  absl::MutexLock lock(&mu_);
  return open_.size() + answered_.size();
}

void RequestStream::Answer(uint64_t number, Outgoing answer) {
  // Memory was too short even for an error: a request can't be left without an answer.
  if (!answer.bytes.Valid()) return Break(absl::Status(absl::StatusCode::kResourceExhausted, ""));
  {
    absl::MutexLock lock(&mu_);
    const auto found = by_number_.find(number);
    if (found == by_number_.end()) return;  // the stream is broken
    const auto entry = found->second;
    by_number_.erase(found);
    entry->answer = std::move(answer);
    if (!options_.ordered) answered_.splice(answered_.end(), open_, entry);
    while (options_.ordered && !open_.empty() && open_.front().answer.has_value()) {
      answered_.splice(answered_.end(), open_, open_.begin());
    }
  }
  GoOn();
}

void RequestStream::Tell(grpc::ByteBuffer bytes) {
  std::list<Outgoing> one;
  one.push_back({.bytes = std::move(bytes)});
  {
    absl::MutexLock lock(&mu_);
    if (broken_) return;
    told_.splice(told_.end(), one);
  }
  GoOn();
}

void RequestStream::Expect(bool more) {
  {
    absl::MutexLock lock(&mu_);
    expecting_ = more;
  }
  GoOn();
}

void RequestStream::OnWriteDone(bool ok) {
  written_ = {};
  bool expecting;
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    expecting = expecting_ && !closed_;
  }
  if (!expecting) guard_->Progress();
  if (!ok) return Break(Left("the stream broke off"));
  GoOn();
}

void RequestStream::OnCancel() { Break(Left("the caller has left the stream")); }

void RequestStream::Close(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_) end_ = status;
    closed_ = true;
  }
  FailIncomplete(status);
  GoOn();
}

void RequestStream::Break(const absl::Status& status) {
  std::list<Entry> open, answered;  // their memory goes now, whoever still holds the stream
  std::list<Outgoing> told;
  {
    absl::MutexLock lock(&mu_);
    if (!broken_) end_ = status;
    closed_ = broken_ = true;
    by_number_.clear();
    open.swap(open_);
    answered.swap(answered_);
    told.swap(told_);
  }
  for (const Entry& entry : open) {
    if (const auto request = entry.request.lock(); request != nullptr) request->Cancel("the stream has ended");
  }
  GoOn();
}

RequestStream::Step RequestStream::Next() {
  Step step;
  if (finished_) return step;
  if (!writing_ && !broken_ && !(told_.empty() && answered_.empty())) {
    const bool answer = told_.empty();
    written_ = answer ? *std::move(answered_.front().answer) : std::move(told_.front());
    answer ? answered_.pop_front() : told_.pop_front();
    step.write = writing_ = true;
    step.more = !(told_.empty() && answered_.empty());
  }
  const bool room = options_.most_waiting == 0 || open_.size() + answered_.size() < options_.most_waiting;
  if (!reading_ && !closed_ && room) step.read = reading_ = true;
  if (!writing_ && (broken_ || (closed_ && !taking_ && open_.empty() && answered_.empty() && told_.empty()))) {
    finished_ = true;
    step.finish = end_;
  }
  step.client_acts = writing_ || (expecting_ && !closed_);
  return step;
}

// An operation may end, and call back, before the call that starts it returns, and nothing may be started after the end.
void RequestStream::GoOn() {
  const std::shared_ptr<RequestStream> keep = shared_from_this();
  {
    absl::MutexLock lock(&mu_);
    again_ = true;
    if (going_) return;
    going_ = true;
  }
  for (;;) {
    Step step;
    {
      absl::MutexLock lock(&mu_);
      if (!again_) {
        going_ = false;
        return;
      }
      again_ = false;
      step = Next();
    }
    if (step.client_acts != client_acts_) {
      client_acts_ = step.client_acts;
      guard_->SetBusy(!client_acts_);
    }
    if (step.write) {
      grpc::WriteOptions options;
      if (step.more) options.set_buffer_hint();
      StartWrite(&written_.bytes, options);
    }
    if (step.read) StartRead(&read_);
    if (step.finish.has_value()) {
      slot_.reset();  // so that the client's next call finds the place free
      Finish(ToGrpcStatus(*step.finish, context_));
    }
  }
}

void RequestStream::OnDone() {
  guard_->Stop();
  Guarded("the end of a stream", [this] { Ended(); }).IgnoreError();
  streams_->Leave(shared_from_this());
  self_.reset();
}

absl::Status RequestStreams::Enter(const std::shared_ptr<RequestStream>& stream, const std::string& caller) {
  PENSTOCK_ASSIGN_OR_RETURN(StreamSlots::Slot slot, slots_.Take(caller));
  absl::MutexLock lock(&mu_);
  if (shut_down_) return Closing();
  stream->slot_ = std::move(slot);
  open_.insert(stream);
  return absl::OkStatus();
}

void RequestStreams::Leave(const std::shared_ptr<RequestStream>& stream) {
  absl::MutexLock lock(&mu_);
  open_.erase(stream);
}

void RequestStreams::Shutdown() {
  std::set<std::shared_ptr<RequestStream>> open;
  {
    absl::MutexLock lock(&mu_);
    shut_down_ = true;
    open = open_;
  }
  for (const auto& stream : open) stream->Close(Closing());
}

}  // namespace penstock
