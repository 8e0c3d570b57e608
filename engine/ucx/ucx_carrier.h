#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/transport/carrier.h"

namespace penstock {

class UcxWorker;

// Moves frames by UCX, over TCP.
//
// Model:     A thread, `ps-ucx`, keeps UCX going; it sleeps until UCX or a caller has something for it, so that rendezvous
//            go on while others compute. While it sleeps, Send() sends on the caller's thread, which saves waking it; while
//            it works, and from handlers, callers leave it commands.
// Threads:   as Carrier says; handlers run on `ps-ucx`. Who uses UCX holds `worker_mu_`: for it only `ps-ucx` waits, others
//            leave a command if it is not free.
// Lifecycle: PrepareUcxEnvironment() before the first; that one loads UCX, for good.
// Units:     a frame that is not with its peer within `transfer_timeout_nanos`, or a small one with the kernel, costs the
//            peer, and so does a peer whose host acknowledges nothing of what is sent to it for `silence_nanos`, as where a
//            link is cut; 0: it is waited for.
// Fails:     Create: FAILED_PRECONDITION / FEATURE_DISABLED without UCX's libraries or in another environment,
//            FAILED_PRECONDITION / LISTEN_FAILED without a usable network, RESOURCE_EXHAUSTED / HOST_MEMORY.
//            A peer that is killed is noticed in milliseconds; one whose link is cut, or that freezes, only while something
//            is sent to it, and the latter by the transfer timeout only: its heartbeat must be watched elsewhere.
class UcxCarrier : public Carrier {
 public:
  struct Options {
    int64_t transfer_timeout_nanos = int64_t{60} * 1'000'000'000;
    int64_t silence_nanos = 0;
    Clock* clock = RealClock();  // usually only tests set this
  };
  static absl::StatusOr<std::unique_ptr<UcxCarrier>> Create(Options options);
  ~UcxCarrier() override;

  std::string address() const override;
  absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) override;
  void Send(Rank to, Frame frame) override ABSL_LOCKS_EXCLUDED(mu_);
  void Disconnect(Rank peer, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void Close() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Command = std::function<void(UcxWorker&)>;

  UcxCarrier(Options options, std::unique_ptr<UcxWorker> worker, int wake);
  bool SendAtOnce(Rank to, Frame& frame) ABSL_LOCKS_EXCLUDED(worker_mu_, mu_);
  void Post(Command command) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Command> TakeCommands(bool* closing, absl::Status* all_lost) ABSL_LOCKS_EXCLUDED(mu_);
  bool CommandsWait() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(worker_mu_);
  bool TakeTurn(int64_t* until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(worker_mu_);
  void Sleep(int64_t until);
  void LookForConnections();
  int64_t Deadline() const { return options_.clock->NowNanos() + options_.transfer_timeout_nanos; }

  const Options options_;
  const std::string address_;
  const int events_;  // a descriptor: UCX has something to do
  const int wake_;    // an event descriptor: there are commands
  // The thread's:
  int64_t look_nanos_ = 0;   // when to look for connections again
  int64_t flush_until_ = 0;  // 0: not flushed yet

  absl::Mutex worker_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  const std::unique_ptr<UcxWorker> worker_ ABSL_PT_GUARDED_BY(worker_mu_);

  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status all_lost_ ABSL_GUARDED_BY(mu_);  // not OK: every peer is given up

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
