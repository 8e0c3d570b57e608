#include "client/cli/doctor_checks.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/output.h"

namespace penstock {
namespace {

using Level = Finding::Level;

constexpr int kMinDriver = 580;  // the first that runs CUDA 13
constexpr int64_t kMinSharedMemory = int64_t{64} << 20;
constexpr int64_t kMinOpenFiles = 4096;
constexpr int64_t kMinMemory = int64_t{2} << 30;
constexpr int64_t kMinDisk = int64_t{1} << 30;
constexpr int64_t kRoomyDisk = int64_t{10} << 30;
constexpr double kSlowSync = 0.05;

Finding Gpus(const MachineFacts& facts) {
  if (facts.driver_version.empty()) return {"gpus", Level::kOk, "none: the daemon uses CPU devices", ""};
  int major = 0;
  const bool known = absl::SimpleAtoi(facts.driver_version.substr(0, facts.driver_version.find('.')), &major);
  const std::string detail = absl::StrCat(facts.gpus, " GPUs, driver ", facts.driver_version);
  if (known && major < kMinDriver) {
    return {"gpus", Level::kFail, detail, absl::StrCat("CUDA 13 needs driver ", kMinDriver, " or newer")};
  }
  if (facts.gpus == 0) return {"gpus", Level::kWarn, detail, "the driver sees no GPU: look at its log with dmesg"};
  if (facts.open_gpus == 0) {
    return {"gpus", Level::kWarn, detail + ", and this user may open none",
            "containers: a limit of nvidia.com/gpu, or --gpus; services: DeviceAllow=char-nvidia"};
  }
  return {"gpus", Level::kOk, detail, ""};
}

Finding SharedMemory(const MachineFacts& facts) {
  if (facts.shared_memory_bytes < 0) return {"shared memory", Level::kWarn, "no /dev/shm", "mount a tmpfs at /dev/shm"};
  if (facts.shared_memory_bytes < kMinSharedMemory) {
    return {"shared memory", Level::kWarn, "/dev/shm has " + BytesText(facts.shared_memory_bytes),
            "containers: --shm-size=256m, or an emptyDir of medium Memory"};
  }
  return {"shared memory", Level::kOk, "/dev/shm has " + BytesText(facts.shared_memory_bytes), ""};
}

Finding LockedMemory(const MachineFacts& facts) {
  if (facts.locked_memory_bytes == std::numeric_limits<int64_t>::max()) {
    return {"locked memory", Level::kOk, "without a limit", ""};
  }
  const std::string detail = "at most " + BytesText(facts.locked_memory_bytes);
  if (facts.gpus == 0) return {"locked memory", Level::kOk, detail + "; without GPUs nothing is pinned", ""};
  return {"locked memory", Level::kWarn, detail,
          "copies to GPUs pin memory: ulimit -l unlimited, LimitMEMLOCK=infinity"};
}

Finding OpenFiles(const MachineFacts& facts) {
  const std::string detail = absl::StrCat("at most ", facts.open_files);
  if (facts.open_files >= kMinOpenFiles) return {"open files", Level::kOk, detail, ""};
  return {"open files", Level::kWarn, detail,
          absl::StrCat("each client needs two: ulimit -n ", kMinOpenFiles, ", LimitNOFILE=", kMinOpenFiles)};
}

Finding Memory(const MachineFacts& facts) {
  if (facts.memory_bytes >= kMinMemory) return {"memory", Level::kOk, BytesText(facts.memory_bytes), ""};
  return {"memory", Level::kWarn, BytesText(facts.memory_bytes),
          "a daemon with a small model wants " + BytesText(kMinMemory)};
}

Finding ClockFinding(const MachineFacts& facts) {
  if (!facts.clock_known) return {"clock", Level::kOk, "can't be asked here", ""};
  if (facts.clock_synchronised) return {"clock", Level::kOk, "synchronised", ""};
  return {"clock", Level::kWarn, "not synchronised, as far as the kernel knows",
          "run chrony or systemd-timesyncd; in a container, the host's clock counts"};
}

Finding Disk(const MachineFacts& facts) {
  const std::string detail = BytesText(facts.state_free_bytes) + " free at " + facts.state_dir;
  if (facts.state_free_bytes < kMinDisk) {
    return {"disk space", Level::kFail, detail,
            "a checkpoint is as large as the model: free space, or --state-dir elsewhere"};
  }
  if (facts.state_free_bytes < kRoomyDisk) return {"disk space", Level::kWarn, detail, "enough for small models only"};
  return {"disk space", Level::kOk, detail, ""};
}

Finding Sync(const MachineFacts& facts) {
  if (!facts.state_dir_writable) {
    return {"state folder", Level::kFail, "can't be written to: " + facts.state_dir,
            "give it to the daemon's user, or name another one with --state-dir"};
  }
  const std::string detail = NumberText(facts.state_sync_seconds * 1e3, 1) + " ms until the disk holds a small file";
  if (facts.state_sync_seconds < kSlowSync) return {"state folder", Level::kOk, detail, ""};
  return {"state folder", Level::kWarn, detail, "checkpoints will be slow: put --state-dir on a faster disk"};
}

// "2.11" of "2.11.0+cu130".
std::string MinorOf(const std::string& version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  return parts.size() < 2 ? version : parts[0] + "." + parts[1];
}

std::string TorchFix(const MachineFacts& facts) {
  if (!facts.daemon_packed) return "LibTorch or another library is missing: deploy/setup.sh, then build it again";
  return absl::StrCat(
      "in the environment of its Python: python3 -m pip install 'torch==", MinorOf(PENSTOCK_TORCH_VERSION), ".*'");
}

Finding Daemon(const MachineFacts& facts) {
  if (facts.daemon_path.empty()) {
    return {"penstockd", Level::kWarn, "not found beside this program or on the path", "name it with --penstockd PATH"};
  }
  if (!facts.no_torch_reason.empty()) {
    return {"penstockd", Level::kFail, facts.daemon_path + ": " + facts.no_torch_reason, facts.no_torch_command};
  }
  if (facts.daemon_version.empty()) {
    return {"penstockd", Level::kFail, facts.daemon_path + ": " + facts.daemon_problem, TorchFix(facts)};
  }
  // The build knows its own; another minor version may load and then fail at any call.
  const std::string built_for = PENSTOCK_TORCH_VERSION;
  if (!facts.torch_version.empty() && MinorOf(facts.torch_version) != MinorOf(built_for)) {
    return {"penstockd", Level::kFail,
            absl::StrCat(facts.daemon_path, " is built for torch ", built_for, ", and loads ", facts.daemon_torch),
            TorchFix(facts)};
  }
  const std::string torch = facts.daemon_torch.empty() ? "LibTorch" : facts.daemon_torch;
  return {"penstockd", Level::kOk, absl::StrCat(facts.daemon_version, " runs; ", torch, " and all libraries are found"),
          ""};
}

}  // namespace

Finding JudgePorts(const MachineFacts& facts, bool daemon_answers) {
  const std::string all = absl::StrJoin(kDefaultPorts, ", ");
  if (facts.taken_ports.empty()) return {"ports", Level::kOk, all + " are free", ""};
  const std::string detail = "somebody listens on " + absl::StrJoin(facts.taken_ports, ", ");
  if (daemon_answers) return {"ports", Level::kOk, detail + ", and a daemon answers", ""};
  return {"ports", Level::kWarn, detail + ", and no daemon answers",
          "end that program, or name other addresses: --listen, --metrics-listen, --admin-listen"};
}

std::string_view NameOf(Finding::Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      return "fail";
  }
  return "fail";
}

std::vector<Finding> Judge(const MachineFacts& facts) {
  return {Daemon(facts),    Gpus(facts),         Memory(facts), SharedMemory(facts), LockedMemory(facts),
          OpenFiles(facts), ClockFinding(facts), Disk(facts),   Sync(facts)};
}

}  // namespace penstock
