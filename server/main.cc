// penstockd: reads its settings, starts the daemon, and drains it when a signal or a caller says so.

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/log_sink.h"
#include "engine/base/thread.h"
#include "engine/device/accelerators.h"
#include "engine/device/deterministic.h"
#include "engine/own_layers/load_library.h"
#include "server/daemon.h"
#include "server/daemon_options.h"
#include "server/drain_control.h"
#include "server/metrics/metrics_page.h"
#include "server/rank_daemon.h"
#include "server/rank_options.h"
#include "server/service_manager.h"

namespace {

// Exit codes: 0 drained, 1 failed, cut short or state lost, 2 bad settings.
constexpr int kFailed = 1;
constexpr int kUsage = 2;
// How long the end waits for who reads the log.
constexpr absl::Duration kLogPatience = absl::Seconds(2);

[[noreturn]] void EndByForce() {
  penstock::FlushLog(kLogPatience);
  std::_Exit(kFailed);
}

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

// Wakes the main thread when a caller asks for a drain; by itself it asks for nothing.
constexpr int kWakeSignal = SIGUSR1;

// The signals that end the daemon, blocked in every thread: they are waited for, not caught.
sigset_t BlockEndSignals() {
  signal(SIGPIPE, SIG_IGN);  // a peer that closes during a write is that call's error
  signal(SIGXFSZ, SIG_IGN);  // and so is a file that grows beyond the limit of a process
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigset_t blocked = signals;
  sigaddset(&blocked, kWakeSignal);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  return signals;
}

// The libraries' own lines become ours: one form, escaped, counted, at a limited rate. Callers can cause them, so none
// is an error.
void LogForLibrary(gpr_log_func_args* line) {
  const auto level =
      line->severity == GPR_LOG_SEVERITY_ERROR ? penstock::LogLevel::kWarning : penstock::LogLevel::kDebug;
  penstock::Log(level, "grpc", {{"problem", line->message}});
}

void LogForProtobuf(google::protobuf::LogLevel severity, const char*, int, const std::string& line) {
  const auto level =
      severity >= google::protobuf::LOGLEVEL_ERROR ? penstock::LogLevel::kWarning : penstock::LogLevel::kDebug;
  penstock::Log(level, "protobuf", {{"problem", line}});
}

// Waits for a signal, at most `time`; 0: none came.
int AwaitSignal(const sigset_t& signals, absl::Duration time) {
  const timespec limit = absl::ToTimespec(time);
  return std::max(0, sigtimedwait(&signals, nullptr, &limit));
}

// Whether such a signal waits, without taking it.
bool EndIsAskedFor(const sigset_t& signals) {
  sigset_t pending;
  sigpending(&pending);
  return (sigismember(&pending, SIGTERM) == 1 && sigismember(&signals, SIGTERM) == 1) ||
         (sigismember(&pending, SIGINT) == 1 && sigismember(&signals, SIGINT) == 1);
}

// Says to the service manager that the daemon lives, as long as it does, often enough for its watchdog.
class Feeder {
 public:
  Feeder(std::function<bool()> live, const penstock::ServiceManager* manager)
      : live_(std::move(live)), manager_(manager) {}

  // How long may pass until the next call.
  absl::Duration Feed() {
    if (manager_->feed_every() == absl::ZeroDuration()) return absl::Hours(1);
    const int64_t now = penstock::RealClock()->NowNanos();  // the wall clock may jump
    if (now >= next_nanos_) {
      if (live_()) manager_->Tell("WATCHDOG=1");
      next_nanos_ = now + absl::ToInt64Nanoseconds(manager_->feed_every());
    }
    return absl::Nanoseconds(next_nanos_ - now);
  }

 private:
  const std::function<bool()> live_;
  const penstock::ServiceManager* const manager_;
  int64_t next_nanos_ = 0;
};

// How long the end takes at most after a second signal: what is being measured or computed may take hours.
constexpr absl::Duration kHurriedClose = absl::Seconds(5);

// Runs one drain, which a second signal makes hurry, and a third waits for nothing. `signalled`: whether a signal has
// asked for it; one that comes later joins what a caller has asked for, and then nobody can abort it.
penstock::DrainEnd DrainOnce(penstock::Daemon* daemon, const std::shared_ptr<penstock::DrainSignal>& drain,
                             const sigset_t& signals, const penstock::ServiceManager& manager, Feeder* feeder,
                             std::atomic<bool>* signalled) {
  std::atomic<bool> over = false;
  penstock::Thread second("ps-signal", [&] {
    int64_t latest = std::numeric_limits<int64_t>::max();
    while (!over) {
      feeder->Feed();
      const bool came = AwaitSignal(signals, absl::Milliseconds(50)) > 0;
      const int64_t now = penstock::RealClock()->NowNanos();
      if (now >= latest || (came && drain->hurried())) {
        penstock::LogError("ending by force", {{"after", came ? "a third signal" : "a close that does not end"}});
        EndByForce();
      }
      if (!came) continue;
      if (!signalled->exchange(true)) {
        penstock::LogInfo("a signal asks for the drain, too");
        manager.Tell("STOPPING=1");
        drain->MakeFinal();
        continue;
      }
      penstock::LogWarning("second signal: closing at once");
      drain->Hurry();
      latest = now + absl::ToInt64Nanoseconds(kHurriedClose);
    }
  });
  const absl::Cleanup stop = [&] { over = true; };
  return daemon->Drain(drain);
}

// Serves until a signal or a caller asks for the end, and drains; after an abort it serves on.
int ServeUntilDrained(penstock::Daemon* daemon, penstock::DrainControl* drains, const sigset_t& signals,
                      const penstock::ServiceManager& manager) {
  using penstock::DrainEnd;
  sigset_t waking = signals;
  sigaddset(&waking, kWakeSignal);
  Feeder feeder([daemon] { return daemon->live(); }, &manager);
  std::atomic<bool> signalled = false;
  DrainEnd end = DrainEnd::kAborted;
  while (end == DrainEnd::kAborted) {
    manager.Tell("READY=1\nSTATUS=serving on " + daemon->api_address());
    while (!signalled && !drains->asked().has_value()) {
      const int number = AwaitSignal(waking, std::max(absl::Milliseconds(1), feeder.Feed()));
      signalled = number == SIGTERM || number == SIGINT;
    }
    if (signalled) drains->Ask({.final = true}).IgnoreError();  // it may hurry on its own thread
    const std::shared_ptr<penstock::DrainSignal> drain = drains->asked()->signal;
    penstock::LogInfo("draining", {{"by", signalled ? "a signal" : "a call"},
                                   {"for_upgrade", drain->view().for_upgrade ? "true" : "false"}});
    manager.Tell(std::string(signalled ? "STOPPING=1\n" : "") + "STATUS=draining: finishing the accepted work");
    end = DrainOnce(daemon, drain, signals, manager, &feeder, &signalled);
    if (end != DrainEnd::kAborted) break;
    drains->Forget();
    penstock::LogInfo("the drain was aborted: serving on");
  }
  if (end == DrainEnd::kHangs) {
    // Nobody can wait for a thread whose disk does not answer; what is on the disk is whole at any time.
    penstock::LogError("ending by force: a checkpoint is neither saved nor given up");
    EndByForce();
  }
  return end == DrainEnd::kWhole ? 0 : kFailed;
}

int ReportStart(const absl::Status& why) {
  penstock::LogError("the daemon can't start", {{"reason", penstock::ReasonOf(why)},
                                                {"problem", std::string(why.message())},
                                                {"path", penstock::ValuesOf(why)["path"]}});
  return why.code() == absl::StatusCode::kInvalidArgument ? kUsage : kFailed;
}

// Lends its devices until a signal comes. What it holds, its leader can build again: there is nothing to finish or to
// save.
int LendUntilStopped(const penstock::DaemonOptions& options, const sigset_t& signals,
                     const penstock::ServiceManager& manager) {
  using namespace penstock;
  auto daemon = RankDaemon::Create(options, RealClock());
  if (!daemon.ok()) return ReportStart(daemon.status());
  Feeder feeder([&] { return (*daemon)->live(); }, &manager);
  manager.Tell("READY=1\nSTATUS=lending devices to " + options.ranks.leader);
  while (AwaitSignal(signals, std::max(absl::Milliseconds(1), feeder.Feed())) == 0) {
  }
  manager.Tell("STOPPING=1");
  const int64_t asked = RealClock()->NowNanos();
  while ((*daemon)->needed(RealClock()->NowNanos() - asked)) {
    feeder.Feed();
    if (AwaitSignal(signals, absl::Milliseconds(50)) != 0) break;  // a second one
  }
  LogInfo("leaving the group");
  daemon->reset();
  return 0;
}

// To what the machine allows, which is often far above the usual 1,024: each connection takes one, and the listener of
// gRPC 1.51 never accepts again once it has found none.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Run(int count, char** values) {
  using namespace penstock;
  // Debian's Abseil was built with its search for deadlocks, which takes one lock of the whole process at every lock.
  // The tests keep it.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // A signal ends the reading of --config, which may be a pipe that nobody writes to.
  const auto line =
      ParseCommandLine(std::vector<std::string>(values + 1, values + count), Environment(), MetricTableJson());
  if (!line.ok()) {
    std::fprintf(stderr, "penstockd: %s\n", std::string(line.status().message()).c_str());
    return kUsage;
  }
  RaiseFileLimit();
  const sigset_t signals = BlockEndSignals();
  if (line->action == CommandLine::Action::kPrint) {
    std::fputs(line->text.c_str(), stdout);
    return 0;
  }
  ConfigureLog(line->options.log_level, line->options.log_format);
  PrepareForRanks(line->options);
  if (line->options.deterministic) UseDeterministicKernels();
  OpenAccelerators(line->options.devices);  // before anything asks LibTorch about CUDA
  if (const absl::Status loaded = LoadLayerLibraries(line->options.layer_libraries); !loaded.ok()) {
    std::fprintf(stderr, "penstockd: %s\n", std::string(loaded.message()).c_str());
    return kUsage;
  }
  if (line->action == CommandLine::Action::kCheckConfig) {
    const absl::Status good = CheckOptions(line->options);
    if (!good.ok()) std::fprintf(stderr, "penstockd: %s\n", std::string(good.message()).c_str());
    return good.ok() ? 0 : kUsage;
  }
  StartLogWriter();
  google::protobuf::SetLogHandler(&LogForProtobuf);
  // One more reference than the server's: without it, tearing down the library may stall for seconds.
  gpr_set_log_function(&LogForLibrary);
  grpc_init();
  const ServiceManager manager = ServiceManager::FromEnvironment(Environment(), getpid());
  int code;
  if (line->options.ranks.rank != Rank(0)) {
    code = LendUntilStopped(line->options, signals, manager);
  } else {
    // To this thread alone: one that a preloaded library has started may not block the signal, which would end the process.
    DrainControl drains([main = pthread_self()] { pthread_kill(main, kWakeSignal); });
    auto daemon = Daemon::Create(line->options, RealClock(), &drains, [&signals] { return EndIsAskedFor(signals); });
    if (absl::IsCancelled(daemon.status())) {  // nothing was accepted, and what is on the disk is whole
      LogInfo("stopped while it started");
      FlushLog(kLogPatience);
      return 0;
    }
    if (!daemon.ok()) {
      code = ReportStart(daemon.status());
      FlushLog(kLogPatience);
      return code;
    }
    code = ServeUntilDrained(daemon->get(), &drains, signals, manager);
  }
  LogInfo("stopped", {{"exit", std::to_string(code)}});
  FlushLog(kLogPatience);
  return code;
}

}  // namespace

int main(int count, char** values) {
  return penstock::Guarded("the daemon", [&] { return absl::StatusOr<int>(Run(count, values)); }).value_or(kFailed);
}
