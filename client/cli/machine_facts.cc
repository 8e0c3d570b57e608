#include "client/cli/machine_facts.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/clock.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void ReadDriver(MachineFacts* facts) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    facts->gpus += entry.is_directory(none) ? 1 : 0;
  }
  for (int gpu = 0; gpu < 64; ++gpu) {
    const std::string file = absl::StrCat("/dev/nvidia", gpu);
    if (access(file.c_str(), R_OK | W_OK) == 0) ++facts->open_gpus;
  }
  // NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ...
  for (const absl::string_view word :
       absl::StrSplit(FirstLine("/proc/driver/nvidia/version"), ' ', absl::SkipEmpty())) {
    if (facts->driver_version.empty() && absl::ascii_isdigit(word[0]) && word.find('.') != absl::string_view::npos) {
      facts->driver_version = std::string(word);
    }
  }
}

int64_t LimitOf(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return -1;
  if (limit.rlim_max == RLIM_INFINITY) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(limit.rlim_max);
}

int64_t MemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  int64_t group = 0;
  if (absl::SimpleAtoi(FirstLine("/sys/fs/cgroup/memory.max"), &group)) bytes = std::min(bytes, group);
  return bytes;
}

void ReadClock(MachineFacts* facts) {
  timex state = {};
  const int answer = adjtimex(&state);
  facts->clock_known = answer >= 0;
  facts->clock_synchronised = answer >= 0 && answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

// A listener is found by connecting to it; nothing is sent.
void ReadPorts(MachineFacts* facts) {
  for (const int port : kDefaultPorts) {
    const int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one < 0) continue;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(one, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      facts->taken_ports.push_back(port);
    }
    close(one);
  }
}

// Seconds for one small file to reach the disk; -1 if it can't be written.
double SyncSeconds(const fs::path& folder) {
  const std::string path = (folder / absl::StrCat(".penstock-doctor-", getpid())).string();
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return -1;
  const std::string block(4096, '\0');
  const int64_t begin = RealClock()->NowNanos();
  const bool written =
      write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size()) && fsync(file) == 0;
  const int64_t end = RealClock()->NowNanos();
  close(file);
  unlink(path.c_str());
  return written ? static_cast<double>(end - begin) * 1e-9 : -1;
}

void ReadStateFolder(const std::string& wanted, MachineFacts* facts) {
  std::error_code ignored;
  fs::path folder = fs::absolute(wanted, ignored);
  while (!fs::exists(folder, ignored) && folder != folder.parent_path()) folder = folder.parent_path();
  facts->state_dir = folder.string();
  struct statvfs space = {};
  if (statvfs(folder.c_str(), &space) == 0) {
    facts->state_free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  }
  facts->state_sync_seconds = SyncSeconds(folder);
  facts->state_dir_writable = facts->state_sync_seconds >= 0;
}

std::string FindProgram(const std::string& name) {
  std::error_code none;
  if (name.find('/') != std::string::npos) return fs::exists(name, none) ? name : "";
  const fs::path own = fs::read_symlink("/proc/self/exe", none).parent_path();
  std::vector<fs::path> folders = {own, own / "../../server"};  // installed, and in a build folder
  if (const char* path = std::getenv("PATH")) {
    for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty()))
      folders.emplace_back(std::string(folder));
  }
  for (const fs::path& folder : folders) {
    const fs::path program = (folder / name).lexically_normal();
    if (access(program.c_str(), X_OK) == 0) return program.string();
  }
  return "";
}

// What a program prints, 64 KiB of it, and whether it ends well. Without a shell: an image has none. `setting`: A=B, of its
// environment besides ours; may be empty.
std::string OutputOf(std::vector<std::string> command, std::string setting, bool* good) {
  *good = false;
  std::array<int, 2> pipe = {};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) return "";
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  std::vector<char*> environment;
  for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
  if (!setting.empty()) environment.push_back(setting.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  pid_t process = 0;
  const int error = posix_spawn(&process, words[0], &actions, nullptr, words.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(pipe[1]);
  std::string text;
  std::array<char, 4096> piece;
  while (error == 0 && text.size() < size_t{64} << 10) {
    const ssize_t got = read(pipe[0], piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<size_t>(got));
  }
  close(pipe[0]);
  if (error != 0) return std::strerror(error);
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  *good = status == 0;
  if (WIFSIGNALED(status)) absl::StrAppend(&text, "it was ended by signal ", WTERMSIG(status));
  return text;
}

// What a daemon answers to --version shows whether LibTorch and every other library is found; which LibTorch, the
// dynamic linker tells.
void AskDaemon(const std::string& name, MachineFacts* facts) {
  facts->daemon_path = FindProgram(name);
  if (facts->daemon_path.empty()) return;
  bool good = false;
  const std::string text = OutputOf({facts->daemon_path, "--version"}, "", &good);
  const std::string line(absl::StripAsciiWhitespace(text));
  (good ? facts->daemon_version : facts->daemon_problem) = line.substr(0, line.find('\n'));
  if (good) {
    facts->daemon_torch =
        TorchOf(OutputOf({facts->daemon_path}, "LD_TRACE_LOADED_OBJECTS=1", &good), &facts->torch_version);
  }
}

// What deploy/package/penstock_server/launch.py knows, which starts packed programs.
void AskLauncher(MachineFacts* facts) {
  const fs::path folder = fs::path(facts->daemon_path).parent_path();
  std::error_code none;
  const fs::path own = fs::read_symlink("/proc/self/exe", none).parent_path();
  const bool launcher = absl::StartsWith(FirstLine(facts->daemon_path), "#!");
  facts->daemon_packed = launcher || absl::EndsWith(folder.string(), "/penstock_server/bin");
  const char* told = std::getenv("PENSTOCK_NO_TORCH");
  if (told == nullptr || folder != own) return;
  const std::pair<std::string, std::string> lines = absl::StrSplit(told, absl::MaxSplits('\n', 1));
  std::tie(facts->no_torch_reason, facts->no_torch_command) = lines;
}

}  // namespace

std::string TorchOf(const std::string& libraries, std::string* version) {
  if (version != nullptr) version->clear();
  for (absl::string_view line : absl::StrSplit(libraries, '\n')) {
    // libtorch_cpu.so => /a folder/libtorch_cpu.so (0x00007f0000000000)
    line = absl::StripAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, "libtorch_cpu.so => /")) continue;
    const fs::path library = "/" + std::string(line.substr(0, line.rfind(" (")));
    const fs::path folder = library.lexically_normal().parent_path();
    std::ifstream about(folder.parent_path() / "version.py");  // a wheel has it
    for (std::string text; std::getline(about, text);) {
      const std::vector<std::string> parts = absl::StrSplit(text, '\'');
      if (parts.size() == 3 && parts[0] == "__version__ = ") {
        if (version != nullptr) *version = parts[1];
        return absl::StrCat("torch ", parts[1], " of ", folder.parent_path().string());
      }
    }
    return absl::StrCat("LibTorch of ", folder.string());
  }
  return "";
}

MachineFacts ReadMachineFacts(const std::string& state_dir, const std::string& daemon) {
  MachineFacts facts;
  ReadDriver(&facts);
  struct statvfs shared = {};
  if (statvfs("/dev/shm", &shared) == 0) {
    facts.shared_memory_bytes = static_cast<int64_t>(shared.f_blocks) * static_cast<int64_t>(shared.f_frsize);
  }
  facts.locked_memory_bytes = LimitOf(RLIMIT_MEMLOCK);
  facts.open_files = LimitOf(RLIMIT_NOFILE);
  facts.memory_bytes = MemoryBytes();
  ReadClock(&facts);
  ReadPorts(&facts);
  ReadStateFolder(state_dir, &facts);
  AskDaemon(daemon, &facts);
  AskLauncher(&facts);
  return facts;
}

std::string DefaultStateDir() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (!variable("PENSTOCK_STATE_DIR").empty()) return variable("PENSTOCK_STATE_DIR");
  if (!variable("XDG_STATE_HOME").empty()) return variable("XDG_STATE_HOME") + "/penstock";
  if (!variable("HOME").empty()) return variable("HOME") + "/.local/state/penstock";
  return "penstock-state";
}

}  // namespace penstock
