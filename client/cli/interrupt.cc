#include "client/cli/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "client/cli/terminal.h"

namespace penstock {
namespace {

constexpr int kInterruptedExit = 130;
constexpr char kInterrupted[] = "penstock: interrupted; cancelling and releasing (once more leaves at once)\n";

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGQUIT);
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);  // not under nohup: what is blocked is not ignored
  sigaddset(&signals, SIGUSR2);                                   // ours: wakes the thread to end it
  return signals;
}

}  // namespace

void Interrupt::BlockSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

Interrupt::Interrupt(std::function<void()> on_first) {
  thread_ = std::make_unique<Thread>("ps-interrupt", [this, on_first = std::move(on_first)] {
    const sigset_t waited = Signals();
    bool interrupted = false;
    for (int signal = 0; sigwait(&waited, &signal) == 0;) {
      if (signal == SIGUSR2) {
        if (closing_) return;
        continue;
      }
      if (interrupted) {
        RestoreTerminal();
        _exit(kInterruptedExit);
      }
      interrupted = true;
      [[maybe_unused]] const auto told = write(STDERR_FILENO, kInterrupted, sizeof(kInterrupted) - 1);
      on_first();
    }
  });
}

Interrupt::~Interrupt() {
  closing_ = true;
  kill(getpid(), SIGUSR2);
  thread_->Join();
}

}  // namespace penstock
