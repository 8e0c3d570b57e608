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
// Model:     A thread, `ps-ucx`, owns UCX; it sleeps until UCX or a caller has something for it, so that rendezvous go on
//            while others compute. Callers leave it commands.
// Threads:   as Carrier says; handlers run on `ps-ucx`.
// Lifecycle: the environment of the process must be UcxEnvironment() before it starts.
// Units:     a frame that is not with its peer within `transfer_timeout_nanos` costs the peer.
// Fails:     Create: UNAVAILABLE / RANK_LOST without a usable network, FAILED_PRECONDITION / FEATURE_DISABLED in another
//            environment. A peer that is killed is noticed in milliseconds; one that freezes, or whose link is cut, by
//            the transfer timeout only, and only while something is sent to it: its heartbeat must be watched elsewhere.
class UcxCarrier : public Carrier {
 public:
  struct Options {
    int64_t transfer_timeout_nanos = int64_t{60} * 1'000'000'000;
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
  using Command = std::function<void()>;

  UcxCarrier(Options options, std::unique_ptr<UcxWorker> worker, int wake);
  void Post(Command command) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Command> TakeCommands(bool* closing) ABSL_LOCKS_EXCLUDED(mu_);
  void Run();
  void Sleep(int64_t flush_until);

  const Options options_;
  const int wake_;                           // an event descriptor: there are commands
  const std::unique_ptr<UcxWorker> worker_;  // the thread's, once it runs

  absl::Mutex mu_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
