#include "engine/ucx/ucx_carrier.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/ucx/ucx_worker.h"

namespace penstock {

namespace {

// A peer that has closed itself takes nothing any more, and need not be waited for.
constexpr int64_t kFlushNanos = 1'000'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<UcxCarrier>> UcxCarrier::Create(Options options) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker, UcxWorker::Create());
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no descriptor is left for UCX");
  return std::unique_ptr<UcxCarrier>(new UcxCarrier(options, std::move(worker), wake));
}

UcxCarrier::UcxCarrier(Options options, std::unique_ptr<UcxWorker> worker, int wake)
    : options_(options), wake_(wake), worker_(std::move(worker)) {
  thread_ = std::make_unique<Thread>("ps-ucx", [this] { Run(); });
}

UcxCarrier::~UcxCarrier() {
  Close();
  close(wake_);
}

std::string UcxCarrier::address() const { return worker_->address(); }

absl::Status UcxCarrier::Start(const std::map<Rank, std::string>& peers, Handlers handlers) {
  absl::Status started;
  absl::Notification done;
  Post([&] {
    started = worker_->Start(peers, std::move(handlers));
    done.Notify();
  });
  done.WaitForNotification();
  return started;
}

void UcxCarrier::Send(Rank to, Frame frame) {
  const int64_t deadline = options_.clock->NowNanos() + options_.transfer_timeout_nanos;
  Post([this, to, deadline, frame = std::make_shared<Frame>(std::move(frame))] {
    worker_->Send(to, std::move(*frame), deadline);
  });
}

void UcxCarrier::Disconnect(Rank peer, const absl::Status& why) {
  Post([this, peer, why] { worker_->Disconnect(peer, why); });
}

void UcxCarrier::Post(Command command) {
  bool first = false;
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  if (first) eventfd_write(wake_, 1);
}

void UcxCarrier::Close() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  eventfd_write(wake_, 1);
  thread_->Join();
}

std::vector<UcxCarrier::Command> UcxCarrier::TakeCommands(bool* closing) {
  absl::MutexLock lock(&mu_);
  *closing = closing_;
  return std::exchange(commands_, {});
}

void UcxCarrier::Run() {
  int64_t flush_until = 0;  // 0: not flushed yet
  while (true) {
    bool closing = false;
    for (const Command& command : TakeCommands(&closing)) command();
    const bool more = worker_->Turn(options_.clock->NowNanos());
    if (closing && flush_until == 0 && worker_->Drained()) {
      worker_->Flush();
      flush_until = options_.clock->NowNanos() + std::min(kFlushNanos, options_.transfer_timeout_nanos);
      continue;
    }
    if (flush_until != 0 && (worker_->Drained() || options_.clock->NowNanos() >= flush_until)) break;
    if (!more && worker_->Arm()) Sleep(flush_until);
  }
  worker_->Close();
}

// Until UCX has an event, a caller a command, or a frame is late. Commands that are there already have been told to the
// descriptor, too.
void UcxCarrier::Sleep(int64_t flush_until) {
  constexpr int64_t kNanosPerMillisecond = 1'000'000;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const int64_t deadline = std::min(worker_->NextDeadline(), flush_until == 0 ? kNever : flush_until);
  int timeout_ms = -1;
  if (deadline != kNever) {
    const int64_t left = (deadline - options_.clock->NowNanos()) / kNanosPerMillisecond + 1;
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }
  std::array<pollfd, 2> descriptors = {pollfd{worker_->event_descriptor(), POLLIN, 0}, pollfd{wake_, POLLIN, 0}};
  poll(descriptors.data(), descriptors.size(), timeout_ms);
  eventfd_t told = 0;
  eventfd_read(wake_, &told);
}

}  // namespace penstock
