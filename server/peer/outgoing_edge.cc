#include "server/peer/outgoing_edge.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "grpcpp/generic/generic_stub.h"
#include "penstock/peer/v1/transfer.pb.h"
#include "server/peer/transfer_messages.h"

namespace penstock {
namespace {

constexpr char kMethod[] = "/penstock.peer.v1.TransferService/Transfer";
// A peer that has taken all and does not answer the end of the stream need not be waited for.
constexpr int64_t kEndNanos = 1'000'000'000;

absl::Status Lost(absl::string_view why) {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST", std::string_view(why.data(), why.size()));
}

}  // namespace

OutgoingEdge::OutgoingEdge(Options options, std::shared_ptr<grpc::Channel> channel)
    : options_(std::move(options)), channel_(std::move(channel)) {}

void OutgoingEdge::Start(const grpc::ByteBuffer& hello) {
  message_ = hello;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel_);
  stub.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
  AddHold();
  StartRead(&answer_);
  StartWrite(&message_);
  StartCall();
}

// --- Sending.

void OutgoingEdge::Send(Frame frame) {
  Try([&] {
    absl::MutexLock lock(&mu_);
    if (stopped_ || closing_) return Step::kNone;
    frames_.push_back(std::move(frame));
    deadlines_.push_back(options_.clock->NowNanos() + options_.send_timeout_nanos);
    Watch();
    return Next();
  });
}

void OutgoingEdge::OnWriteDone(bool ok) {
  std::deque<Frame> dropped;
  Try([&] {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) dropped = Stop();
    return Next();
  });
}

// A frame whose message can't be made is half sent: the edge is lost.
template <typename Work>
void OutgoingEdge::Try(Work&& work) {
  Step step = Step::kNone;
  const absl::Status made = Guarded("a frame to a rank", [&] { step = work(); });
  if (!made.ok()) return GiveUp(Lost(made.message()));
  Do(step);
}

OutgoingEdge::Step OutgoingEdge::Next() {
  if (writing_ || telling_) return Step::kNone;
  if (stopped_) return std::exchange(held_, false) ? Step::kRelease : Step::kNone;
  if (!frames_.empty()) {
    message_ = NextMessage();
    writing_ = true;
    return Step::kWrite;
  }
  if (!closing_ || !deadlines_.empty()) return Step::kNone;
  in_order_ = true;
  stopped_ = true;
  held_ = false;
  end_deadline_ = options_.clock->NowNanos() + kEndNanos;
  Watch();
  return Step::kEndWrites;
}

void OutgoingEdge::Do(Step step) {
  if (step == Step::kWrite) StartWrite(&message_);
  if (step == Step::kEndWrites) StartWritesDone();
  if (step == Step::kEndWrites || step == Step::kRelease) RemoveHold();
}

grpc::ByteBuffer OutgoingEdge::NextMessage() {
  const Frame& frame = frames_.front();
  grpc::ByteBuffer message;
  if (!position_.header) {
    message = MakeFrame(frame.header, ByteSize(frame.payload));
    position_.header = true;
  } else {
    std::vector<Piece> pieces;
    int64_t room = kMaximumChunkBytes;
    while (room > 0 && position_.piece < frame.payload.size()) {
      const Piece& piece = frame.payload[position_.piece];
      const int64_t bytes = std::min(room, piece.bytes - position_.offset);
      if (bytes > 0) pieces.push_back({piece.data + position_.offset, bytes, piece.owner});
      position_.offset += bytes;
      room -= bytes;
      if (position_.offset == piece.bytes) position_ = {.header = true, .piece = position_.piece + 1};
    }
    message = MakeChunk(pieces);
  }
  // Empty pieces at the end are no chunk.
  while (position_.piece < frame.payload.size() && frame.payload[position_.piece].bytes == 0) ++position_.piece;
  if (position_.piece == frame.payload.size()) {
    frames_.pop_front();
    position_ = {};
  }
  return message;
}

// --- What the receiver has taken.

void OutgoingEdge::OnReadDone(bool ok) {
  if (!ok) {  // the stream is over; OnDone() has the reason
    std::deque<Frame> dropped;
    Step step = Step::kNone;
    {
      absl::MutexLock lock(&mu_);
      dropped = Stop();
      step = Next();
    }
    return Do(step);
  }
  const absl::Status taken = Guarded("an answer of a rank", [&] { return TakeAnswer(); });
  if (!taken.ok()) GiveUp(Lost(taken.message()));
  StartRead(&answer_);
}

absl::Status OutgoingEdge::TakeAnswer() {
  peer::v1::TransferResponse answer;
  grpc::ProtoBufferReader bytes(&answer_);
  if (!answer.ParseFromZeroCopyStream(&bytes)) return absl::InvalidArgumentError("it answers what is no message");
  Step step = Step::kNone;
  {
    absl::MutexLock lock(&mu_);
    const int64_t more = answer.taken_frames() - taken_;
    if (stopped_) return absl::OkStatus();
    if (more < 0 || more > static_cast<int64_t>(deadlines_.size() - frames_.size())) {
      return absl::InvalidArgumentError("it says that it has taken more frames than were sent, or fewer than before");
    }
    taken_ += more;
    deadlines_.erase(deadlines_.begin(), deadlines_.begin() + more);
    step = Next();
  }
  Do(step);
  return absl::OkStatus();
}

void OutgoingEdge::Watch() {
  const int64_t next = deadlines_.empty() ? end_deadline_ : deadlines_.front();
  if (next == kNever || (timer_ != TimerQueue::kNoTimer && timer_.first <= next)) return;
  options_.timers->Remove(timer_);
  timer_ = options_.timers->Add(next, [edge = weak_from_this()] {
    if (const auto there = edge.lock()) there->OnTimer();
  });
}

void OutgoingEdge::OnTimer() {
  {
    absl::MutexLock lock(&mu_);
    timer_ = TimerQueue::kNoTimer;
    const int64_t next = deadlines_.empty() ? end_deadline_ : deadlines_.front();
    if (next > options_.clock->NowNanos()) return Watch();
  }
  GiveUp(Lost("it has not taken a frame in time"));
}

// --- The end.

std::deque<Frame> OutgoingEdge::Stop() {
  stopped_ = true;
  deadlines_.clear();
  end_deadline_ = kNever;
  return std::exchange(frames_, {});
}

void OutgoingEdge::GiveUp(const absl::Status& why) {
  std::deque<Frame> dropped;
  bool first = false;
  {
    absl::MutexLock lock(&mu_);
    first = !stopped_;
    if (first) {
      dropped = Stop();
      telling_ = told_ = true;
    }
  }
  context_.TryCancel();
  if (!first) return;  // it ends already
  options_.on_lost(why);
  Step step = Step::kNone;
  {
    absl::MutexLock lock(&mu_);
    telling_ = false;
    step = Next();
  }
  Do(step);
}

void OutgoingEdge::Close() {
  Step step = Step::kNone;
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
    if (!stopped_) end_deadline_ = options_.clock->NowNanos() + kEndNanos;  // of a connection that is not there yet
    Watch();
    step = Next();
  }
  Do(step);
}

void OutgoingEdge::OnDone(const grpc::Status& status) {
  bool lost = false;
  TimerQueue::TimerId timer = TimerQueue::kNoTimer;
  {
    absl::MutexLock lock(&mu_);
    lost = !in_order_ && !told_;
    std::swap(timer, timer_);
  }
  options_.timers->Remove(timer);
  if (lost) {
    options_.on_lost(Lost(
        absl::StrCat("its edge has failed: ", status.ok() ? "the peer has ended the stream" : status.error_message())));
  }
  const auto on_over = options_.on_over;  // nothing of this is used any more
  on_over();
}

}  // namespace penstock
