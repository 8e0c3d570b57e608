#include "server/peer/incoming_edge.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "server/peer/transfer_messages.h"

namespace penstock {
namespace {

absl::Status OutOfPlace(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("message: ", problem));
}

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace

IncomingEdge::IncomingEdge(Options options, grpc::CallbackServerContext* context)
    : options_(std::move(options)), context_(context) {}

void IncomingEdge::Start() {
  self_ = shared_from_this();
  {
    absl::MutexLock lock(&mu_);
    timer_ = options_.timers->Add(options_.hello_deadline_nanos, [edge = weak_from_this()] {
      if (const auto there = edge.lock()) there->OnLate();
    });
  }
  StartRead(&read_);
}

void IncomingEdge::OnLate() {
  absl::MutexLock lock(&mu_);
  if (!greeted_ && !done_) context_->TryCancel();  // under the lock: the context goes after OnDone()
}

void IncomingEdge::Begin() {
  {
    absl::MutexLock lock(&mu_);
    begun_ = true;
    if (reading_ || finished_) return;
    reading_ = true;
  }
  StartRead(&read_);
}

// --- Reading.

void IncomingEdge::OnReadDone(bool ok) {
  absl::Status taken;
  if (ok) taken = Guarded("a frame of a rank", [this] { return Take(); });
  if (!ok && in_frame_) taken = OutOfPlace("must be a chunk, got the end of the stream");
  bool over = false;
  bool more = false;
  {
    absl::MutexLock lock(&mu_);
    if (!end_.has_value() && !(ok && taken.ok())) end_ = taken;
    over = end_.has_value();
    more = !over && begun_;
    reading_ = over || more;
  }
  if (more) StartRead(&read_);
  if (!over) return;
  if (ok && !taken.ok()) {
    LogWarning("a stream between ranks is refused",
               {{"peer", context_->peer()}, {"why", std::string(taken.message())}});
  }
  if (in_frame_) EndFrame(absl::UnavailableError("a payload did not come whole"));
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    reading_ = false;
    end = TakeEnd();
  }
  FinishWith(end);
}

absl::Status IncomingEdge::Take() {
  TransferReader reader(&read_);
  if (reader.is_chunk()) return TakeChunk(&reader);
  peer::v1::TransferRequest request;
  if (!reader.Parse(&request)) return OutOfPlace("is none of TransferRequest");
  if (request.has_hello()) return TakeHello(request.hello());
  if (request.has_frame()) return TakeFrame(request.frame());
  return OutOfPlace("must hold a hello, a frame or a chunk");
}

absl::Status IncomingEdge::TakeHello(const peer::v1::TransferHello& hello) {
  if (greeted()) return OutOfPlace("must be a frame or a chunk, got a second hello");
  PENSTOCK_RETURN_IF_ERROR(options_.on_hello(hello, self_));
  absl::MutexLock lock(&mu_);
  greeted_ = true;
  return absl::OkStatus();
}

absl::Status IncomingEdge::TakeFrame(const peer::v1::TransferFrame& frame) {
  if (!greeted()) return OutOfPlace("must be a hello, got a frame");
  if (in_frame_) {
    return OutOfPlace(absl::StrCat("must be a chunk, got a frame while ", payload_left_, " bytes are to come"));
  }
  if (static_cast<int64_t>(frame.header().size()) > kMaximumFrameHeaderBytes) {
    return OutOfPlace(
        absl::StrCat("header must have at most ", kMaximumFrameHeaderBytes, " bytes, got ", frame.header().size()));
  }
  if (frame.payload_bytes() < 0) {
    return OutOfPlace(absl::StrCat("payload_bytes must be at least 0, got ", frame.payload_bytes()));
  }
  absl::StatusOr<Landing> landing = options_.on_header(frame.header(), frame.payload_bytes());
  payload_left_ = frame.payload_bytes();
  in_frame_ = true;
  if (landing.ok() && (landing->on_ended || payload_left_ > 0)) {
    PENSTOCK_CHECK(ByteSize(landing->places) == payload_left_);
    landing_ = *std::move(landing);
  }
  if (payload_left_ == 0) EndFrame(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status IncomingEdge::TakeChunk(TransferReader* chunk) {
  int64_t bytes = chunk->chunk_bytes();
  if (!in_frame_) return OutOfPlace("must be a hello or a frame, got a chunk");
  if (bytes == 0 || bytes > payload_left_) {
    return OutOfPlace(absl::StrCat("chunk must have 1 to ", payload_left_, " bytes, got ", bytes));
  }
  payload_left_ -= bytes;
  while (landing_.has_value() && bytes > 0) {
    const Piece& place = landing_->places.at(place_);
    const int64_t fits = std::min(bytes, place.bytes - place_offset_);
    if (!chunk->ReadChunk(place.data + place_offset_, fits)) return OutOfPlace("chunk is cut off");
    bytes -= fits;
    place_offset_ += fits;
    if (place_offset_ < place.bytes) continue;
    ++place_;
    place_offset_ = 0;
  }
  if (payload_left_ == 0) EndFrame(absl::OkStatus());
  return absl::OkStatus();
}

void IncomingEdge::EndFrame(const absl::Status& how) {
  const std::optional<Landing> landing = std::exchange(landing_, std::nullopt);
  in_frame_ = false;
  payload_left_ = place_offset_ = 0;
  place_ = 0;
  if (landing.has_value() && landing->on_ended) {
    Guarded("a frame of a rank", [&] { landing->on_ended(how); }).IgnoreError();
  }
  if (!how.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    ++taken_;
  }
  TellTaken();
}

// --- What the sender is told.

void IncomingEdge::TellTaken() {
  {
    absl::MutexLock lock(&mu_);
    if (writing_ || end_.has_value() || told_ == taken_) return;
    written_ = MakeTaken(taken_);
    told_ = taken_;
    writing_ = true;
  }
  StartWrite(&written_);
}

void IncomingEdge::OnWriteDone(bool ok) {
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    end = TakeEnd();
  }
  FinishWith(end);
  if (!ok) return;
  const absl::Status told = Guarded("an answer to a rank", [this] { TellTaken(); });
  if (!told.ok()) End(told);
}

// --- The end.

void IncomingEdge::End(const absl::Status& status) {
  std::optional<absl::Status> end;
  {
    absl::MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = status;
    end = TakeEnd();
  }
  FinishWith(end);
}

void IncomingEdge::OnCancel() { End(absl::CancelledError("the stream broke off")); }

std::optional<absl::Status> IncomingEdge::TakeEnd() {
  if (!end_.has_value() || reading_ || writing_ || std::exchange(finished_, true)) return std::nullopt;
  return end_;
}

void IncomingEdge::FinishWith(const std::optional<absl::Status>& end) {
  if (end.has_value()) Finish(ToGrpc(*end));
}

void IncomingEdge::OnDone() {
  bool in_order = false;
  TimerQueue::TimerId timer = TimerQueue::kNoTimer;
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
    in_order = end_->ok() && !context_->IsCancelled();
    std::swap(timer, timer_);
  }
  options_.timers->Remove(timer);
  const auto self = std::move(self_);
  options_.on_over(this, in_order);
}

}  // namespace penstock
