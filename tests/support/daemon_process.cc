#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/status_macros.h"

extern char** environ;

namespace penstock::testing {
namespace {

constexpr int64_t kStartNanos = 60'000'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const std::string& binary,
                                                                    const std::vector<std::string>& flags) {
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess);
  std::string folder = (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::InternalError("can't make a temporary folder");
  daemon->folder_ = folder;
  daemon->address_ = "unix:" + folder + "/api";

  std::vector<std::string> arguments = {binary,
                                        "--listen=" + daemon->address_,
                                        "--metrics-listen=off",
                                        "--admin-listen=off",
                                        "--state-dir=" + folder + "/state",
                                        "--device=cpu:0",
                                        "--device=cpu:1",
                                        "--drain-announce=0s"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = folder + "/log";
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  const int64_t begin = RealClock()->NowNanos();
  const int error = posix_spawn(&daemon->process_, binary.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    daemon->process_ = -1;
    return absl::InternalError(absl::StrCat("can't start ", binary, ": errno ", error));
  }

  ClientOptions options;
  options.address = daemon->address_;
  PENSTOCK_ASSIGN_OR_RETURN(daemon->client_, PipelineClient::Create(options));
  while (true) {
    if (std::filesystem::exists(folder + "/api")) {
      absl::StatusOr<Health> health = daemon->client_->CheckHealth("readiness");
      if (health.ok() && *health == Health::kServing) break;
    }
    if (waitpid(daemon->process_, nullptr, WNOHANG) != 0) {
      daemon->process_ = -1;
      return absl::InternalError("the daemon has ended: " + daemon->LogTail());
    }
    if (RealClock()->NowNanos() - begin > kStartNanos) return absl::InternalError("not ready: " + daemon->LogTail());
    usleep(5'000);  // another process's progress: there is nothing to wait on but its socket
  }
  daemon->start_seconds_ = static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
  return daemon;
}

DaemonProcess::~DaemonProcess() {
  Stop();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

int DaemonProcess::Stop() {
  if (process_ < 0) return -1;
  kill(process_, SIGTERM);
  int status = 0;
  waitpid(process_, &status, 0);
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string DaemonProcess::LogTail() const {
  std::ifstream file(folder_ + "/log");
  const std::string log((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return log.size() > 2000 ? log.substr(log.size() - 2000) : log;
}

}  // namespace penstock::testing
