#include "engine/ucx/ucx_carrier.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/ucx/socket_silence.h"
#include "engine/ucx/ucx_worker.h"

namespace penstock {

namespace {

// A peer that has closed itself takes nothing any more, and need not be waited for.
constexpr int64_t kFlushNanos = 1'000'000'000;
constexpr int64_t kNanosPerMillisecond = 1'000'000;
constexpr int64_t kMaximumSilence = int64_t{24} * 3600 * 1000;  // in milliseconds

constexpr int64_t kCopiedAtOnce = int64_t{64} << 10;  // which a caller does as fast as it wakes the thread

thread_local const UcxCarrier* this_carrier = nullptr;  // whose thread this is

// Unlocks what TryLock() has locked.
class ABSL_SCOPED_LOCKABLE Unlocked {
 public:
  explicit Unlocked(absl::Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) : mu_(mu) {}
  ~Unlocked() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  absl::Mutex* const mu_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxCarrier>> UcxCarrier::Create(Options options) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create());
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no descriptor is left for UCX");
  absl::Cleanup give_up = [wake] { close(wake); };
  std::unique_ptr<UcxCarrier> carrier(new UcxCarrier(options, std::move(worker), wake));
  std::move(give_up).Cancel();  // it is the carrier's
  return carrier;
}

UcxCarrier::UcxCarrier(Options options, std::unique_ptr<UcxWorker> worker, int wake)
    : options_(options),
      address_(worker->address()),
      events_(worker->event_descriptor()),
      wake_(wake),
      worker_(std::move(worker)) {
  thread_ = std::make_unique<Thread>("ps-ucx", [this] { Run(); });
}

UcxCarrier::~UcxCarrier() {
  Close();
  close(wake_);
}

std::string UcxCarrier::address() const { return address_; }

absl::Status UcxCarrier::Start(const std::map<Rank, std::string>& peers, Handlers handlers) {
  absl::Status started;
  absl::Notification done;
  Post([&](UcxWorker& worker) {
    started = Guarded("a carrier", [&] { return worker.Start(peers, std::move(handlers)); });
    done.Notify();
  });
  done.WaitForNotification();
  return started;
}

void UcxCarrier::Send(Rank to, Frame frame) {
  if (SendAtOnce(to, frame)) return;
  Post([to, deadline = Deadline(), frame = std::make_shared<Frame>(std::move(frame))](UcxWorker& worker) {
    const absl::Status sent = Guarded("a frame", [&] { worker.Send(to, std::move(*frame), deadline); });
    if (!sent.ok()) worker.Disconnect(to, sent);  // nobody may wait for what was not sent
  });
}

// On the caller's thread, unless `ps-ucx` uses UCX or has yet to send what came before, or UCX would copy much.
bool UcxCarrier::SendAtOnce(Rank to, Frame& frame) {
  if (this_carrier == this) return false;  // a handler
  const int64_t bytes = ByteSize(frame.payload);
  if (bytes > kCopiedAtOnce && bytes <= UcxWorker::kEagerBytes) return false;
  UcxWorker::Frames ended;  // their owners' code may call Send() itself, and wait for what it likes: it runs at last
  bool first = false;
  bool turn = false;
  if (!worker_mu_.TryLock()) return false;
  {
    const Unlocked unlocked(&worker_mu_);
    {
      absl::MutexLock lock(&mu_);
      first = commands_.empty() && !closing_;
    }
    if (first) turn = worker_->Send(to, std::move(frame), Deadline());
    ended = worker_->TakeEnded();
  }
  if (turn) eventfd_write(wake_, 1);
  return first;
}

// Where there is no memory for a command, every peer is given up: nobody may wait for this one.
void UcxCarrier::Disconnect(Rank peer, const absl::Status& why) {
  const absl::Status posted =
      Guarded("the loss of an edge", [&] { Post([peer, why](UcxWorker& worker) { worker.Disconnect(peer, why); }); });
  if (posted.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    all_lost_ = why;
  }
  eventfd_write(wake_, 1);
}

void UcxCarrier::Post(Command command) {
  bool first = false;
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  if (first && this_carrier != this) eventfd_write(wake_, 1);  // the thread itself looks before it sleeps
}

void UcxCarrier::Close() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  eventfd_write(wake_, 1);
  thread_->Join();
}

std::vector<UcxCarrier::Command> UcxCarrier::TakeCommands(bool* closing, absl::Status* all_lost) {
  absl::MutexLock lock(&mu_);
  *closing = closing_;
  *all_lost = std::exchange(all_lost_, absl::OkStatus());
  return std::exchange(commands_, {});
}

bool UcxCarrier::CommandsWait() {
  absl::MutexLock lock(&mu_);
  return !commands_.empty() || !all_lost_.ok();
}

void UcxCarrier::Run() {
  this_carrier = this;
  bool closed = false;
  while (!closed) {
    int64_t until = 0;
    {
      absl::MutexLock lock(&worker_mu_);
      const absl::Status turned = Guarded("a turn of a carrier", [&] {
        worker_mu_.AssertHeld();
        closed = TakeTurn(&until);
      });
      if (!turned.ok()) worker_->DisconnectAll(turned);  // nobody may wait for what it has dropped
    }
    if (!closed && until > 0) Sleep(until);
  }
}

// Whether the carrier has closed; else `until` is when to look again, 0 for at once.
bool UcxCarrier::TakeTurn(int64_t* until) {
  bool closing = false;
  absl::Status all_lost;
  for (const Command& command : TakeCommands(&closing, &all_lost)) command(*worker_);
  if (!all_lost.ok()) worker_->DisconnectAll(all_lost);
  const bool more = worker_->Turn(options_.clock->NowNanos());
  if (closing && flush_until_ == 0 && worker_->Drained()) {
    worker_->Flush();
    flush_until_ = options_.clock->NowNanos() + std::min(kFlushNanos, options_.transfer_timeout_nanos);
    return false;
  }
  if (flush_until_ != 0 && (worker_->Drained() || options_.clock->NowNanos() >= flush_until_)) {
    worker_->Close();
    return true;
  }
  if (more || CommandsWait() || !worker_->Arm()) return false;
  // What callers send meanwhile is late after the latter.
  *until = std::min(worker_->NextDeadline(), flush_until_ == 0 ? Deadline() : flush_until_);
  return false;
}

// They come when they are used first. What one look misses, the next one finds.
void UcxCarrier::LookForConnections() {
  constexpr int64_t kLooksPerSilence = 4;
  const int64_t now = options_.clock->NowNanos();
  if (now < look_nanos_) return;
  look_nanos_ = now + options_.silence_nanos / kLooksPerSilence;
  const int64_t milliseconds = std::clamp<int64_t>(options_.silence_nanos / kNanosPerMillisecond, 1, kMaximumSilence);
  Guarded("a look for connections", [&] { LimitSilence(events_, static_cast<int>(milliseconds)); }).IgnoreError();
}

// Until UCX has an event, another thread a command, or `until`. Such commands that are there already have been told to the
// descriptor, too.
void UcxCarrier::Sleep(int64_t until) {
  if (options_.silence_nanos > 0) {
    LookForConnections();
    until = std::min(until, look_nanos_);
  }
  const int64_t left = (until - options_.clock->NowNanos()) / kNanosPerMillisecond + 1;
  std::array<pollfd, 2> descriptors = {pollfd{events_, POLLIN, 0}, pollfd{wake_, POLLIN, 0}};
  poll(descriptors.data(), descriptors.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
  if (descriptors[1].revents == 0) return;
  eventfd_t told = 0;
  eventfd_read(wake_, &told);
}

}  // namespace penstock
