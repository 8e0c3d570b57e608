#include "engine/device/device.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/accelerators.h"

namespace penstock {
namespace {

constexpr size_t kMaxDevices = 1024;

// A decimal number without sign, spaces or leading zeros.
std::optional<int> SmallNumber(absl::string_view text) {
  int number;
  const bool digits = !text.empty() && text.size() <= 6 && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || (text.size() > 1 && text[0] == '0') || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

// The device that a name means, without cores; nothing for what is no name.
std::optional<Device> NamedDevice(std::string_view name) {
  Device device;
  device.name = CanonicalDeviceName(name);
  absl::string_view rest = device.name;
  device.kind = absl::ConsumePrefix(&rest, "cuda:") ? DeviceKind::kCuda : DeviceKind::kCpu;
  if (device.kind == DeviceKind::kCpu && !absl::ConsumePrefix(&rest, "cpu:")) return std::nullopt;
  const std::optional<int> index = SmallNumber(rest);
  if (!index) return std::nullopt;
  device.index = *index;
  return device;
}

std::string WhyUnusable(const CudaFound& cuda, int index) {
  return cuda.why_unusable ? cuda.why_unusable(index) : std::string();
}

// Whether the machine has a device and can use it; a CPU can be as many as one likes.
absl::Status CheckPresent(const Device& device, const CudaFound& cuda, const std::string& field,
                          const std::string& entry) {
  if (device.kind == DeviceKind::kCpu) return absl::OkStatus();
  if (device.index < cuda.count) {
    const std::string why = WhyUnusable(cuda, device.index);
    return why.empty() ? absl::OkStatus()
                       : InvalidField(field, absl::StrCat("this CUDA device can't be used: ", why), entry);
  }
  if (cuda.count == 0) return InvalidField(field, absl::StrCat("there is no CUDA device: ", cuda.why_none), entry);
  return InvalidField(field, absl::StrCat("there are only ", cuda.count, " CUDA devices"), entry);
}

// What stands for no entry at all.
std::vector<std::string> DefaultEntries(int cores, const CudaFound& cuda) {
  std::vector<std::string> entries;
  for (int i = 0; i < cuda.count; ++i) {
    const std::string name = absl::StrCat("cuda:", i);
    const std::string why = WhyUnusable(cuda, i);
    if (why.empty()) {
      entries.push_back(name);
    } else {
      LogWarning("a CUDA device is left out", {{"device", name}, {"why", why}});
    }
  }
  if (!entries.empty()) return entries;
  for (int i = 0; i < cores; ++i) entries.push_back(absl::StrCat("cpu:", i));
  return entries;
}

// "2,4-6" as 2 4 5 6.
absl::StatusOr<std::vector<int>> ParseCores(absl::string_view text, const std::vector<int>& usable,
                                            const std::string& field, const std::string& entry) {
  std::set<int> cores;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    const std::optional<int> first = SmallNumber(ends.front());
    const std::optional<int> last = SmallNumber(ends.back());
    if (ends.size() > 2 || !first || !last || *first > *last) {
      return InvalidField(field, "cores must be numbers or ranges like 2,3 or 2-3", entry);
    }
    for (int core = *first; core <= *last; ++core) {
      if (std::find(usable.begin(), usable.end(), core) == usable.end()) {
        return InvalidField(field, absl::StrCat("core ", core, " is not usable by this process"), entry);
      }
      if (!cores.insert(core).second) return InvalidField(field, absl::StrCat("core ", core, " stands twice"), entry);
    }
  }
  return std::vector<int>(cores.begin(), cores.end());
}

// Bytes of "8GiB" or "1000"; nothing for anything else, zero and overflow included.
std::optional<int64_t> ParseSize(absl::string_view text) {
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&text, "KiB")) {
    unit = int64_t{1} << 10;
  } else if (absl::ConsumeSuffix(&text, "MiB")) {
    unit = int64_t{1} << 20;
  } else if (absl::ConsumeSuffix(&text, "GiB")) {
    unit = int64_t{1} << 30;
  } else if (absl::ConsumeSuffix(&text, "TiB")) {
    unit = int64_t{1} << 40;
  }
  int64_t number;
  if (text.empty() || !absl::ascii_isdigit(text[0]) || !absl::SimpleAtoi(text, &number) || number <= 0 ||
      number > std::numeric_limits<int64_t>::max() / unit) {
    return std::nullopt;
  }
  return number * unit;
}

// Gives every device without cores an even share of the cores that no entry names, or of all if none are left.
void ShareCores(const std::vector<int>& usable, std::vector<Device>& devices) {
  std::set<int> taken;
  std::vector<Device*> open;
  for (Device& device : devices) {
    taken.insert(device.cores.begin(), device.cores.end());
    if (device.cores.empty()) open.push_back(&device);
  }
  std::vector<int> cores;
  std::copy_if(usable.begin(), usable.end(), std::back_inserter(cores), [&](int core) { return !taken.count(core); });
  if (cores.empty()) cores = usable;
  for (size_t i = 0; i < open.size(); ++i) {
    const size_t begin = i * cores.size() / open.size();
    const size_t end = std::max(begin + 1, (i + 1) * cores.size() / open.size());
    open[i]->cores.assign(cores.begin() + begin, cores.begin() + end);
  }
}

}  // namespace

std::string CanonicalDeviceName(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash != std::string_view::npos && SmallNumber(absl::string_view(name.data(), slash)).has_value()) {
    const std::string device = CanonicalDeviceName(name.substr(slash + 1));
    return slash == 1 && name[0] == '0' ? device : absl::StrCat(std::string(name.substr(0, slash)), "/", device);
  }
  if (name == "cpu") return "cpu:0";
  if (name == "cuda") return "cuda:0";
  return std::string(name);
}

std::string NameOnRank(Rank rank, const std::string& device) {
  return rank == Rank(0) ? device : absl::StrCat(rank.value(), "/", device);
}

std::string LocalDeviceName(const std::string& device) {
  const size_t slash = device.find('/');
  return slash == std::string::npos ? device : device.substr(slash + 1);
}

Device DeviceOfRank(Rank rank, const std::string& name, int64_t memory_limit_bytes, const std::vector<Device>& own) {
  const DeviceKind kind = absl::StartsWith(name, "cuda:") ? DeviceKind::kCuda : DeviceKind::kCpu;
  std::vector<const Device*> alike;
  for (const Device& device : own) {
    if (device.kind == kind) alike.push_back(&device);
  }
  const std::optional<int> index = SmallNumber(absl::string_view(name).substr(name.find(':') + 1));
  Device device = alike.empty() ? own.front() : *alike[static_cast<size_t>(index.value_or(0)) % alike.size()];
  device.name = NameOnRank(rank, name);
  device.memory_limit_bytes = memory_limit_bytes;
  device.rank = rank;
  return device;
}

absl::StatusOr<std::vector<Device>> ParseDevices(const std::vector<std::string>& devices,
                                                 const std::vector<std::string>& memory,
                                                 const std::vector<int>& usable_cores, const CudaFound& cuda) {
  if (usable_cores.empty()) return InvalidField("usable_cores", "must hold at least one core", "none");
  const std::vector<std::string> entries =
      devices.empty() ? DefaultEntries(static_cast<int>(usable_cores.size()), cuda) : devices;
  if (entries.size() > kMaxDevices) {
    return InvalidField("devices", absl::StrCat("must hold at most ", kMaxDevices), absl::StrCat(entries.size()));
  }

  std::vector<Device> parsed;
  const auto find = [&](absl::string_view name) {
    return std::find_if(parsed.begin(), parsed.end(), [&](const Device& device) { return name == device.name; });
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string field = absl::StrCat("devices[", i, "]");
    const std::vector<std::string> halves = absl::StrSplit(entries[i], absl::MaxSplits('=', 1));
    std::optional<Device> device = NamedDevice(halves[0]);
    if (!device) return InvalidField(field, "must be cpu:K, cpu:K=CORES or cuda:K", entries[i]);
    if (find(device->name) != parsed.end()) return InvalidField(field, "names a device twice", entries[i]);
    PENSTOCK_RETURN_IF_ERROR(CheckPresent(*device, cuda, field, entries[i]));
    if (halves.size() == 2) {
      PENSTOCK_ASSIGN_OR_RETURN(device->cores, ParseCores(halves[1], usable_cores, field, entries[i]));
    }
    parsed.push_back(*std::move(device));
  }
  ShareCores(usable_cores, parsed);

  std::set<std::string> limited;
  for (size_t i = 0; i < memory.size(); ++i) {
    const std::string field = absl::StrCat("memory[", i, "]");
    const std::vector<std::string> halves = absl::StrSplit(memory[i], absl::MaxSplits('=', 1));
    const auto device = find(CanonicalDeviceName(halves[0]));
    if (device == parsed.end()) return InvalidField(field, "names no device of this daemon", memory[i]);
    if (!limited.insert(device->name).second) return InvalidField(field, "names a device twice", memory[i]);
    const std::optional<int64_t> bytes = halves.size() == 2 ? ParseSize(halves[1]) : std::nullopt;
    if (!bytes) {
      return InvalidField(field, "must be DEVICE=SIZE, a positive number of bytes or of KiB, MiB, GiB or TiB",
                          memory[i]);
    }
    device->memory_limit_bytes = *bytes;
  }
  for (Device& device : parsed) {
    if (device.kind == DeviceKind::kCuda && device.memory_limit_bytes == 0 && cuda.free_bytes) {
      device.memory_limit_bytes = cuda.free_bytes(device.index);
    }
  }
  return parsed;
}

absl::StatusOr<std::vector<Device>> ParseDevices(const std::vector<std::string>& devices,
                                                 const std::vector<std::string>& memory,
                                                 const std::vector<int>& usable_cores) {
  return ParseDevices(devices, memory, usable_cores, FoundCuda());
}

void UseCores(const Device& device) {
  // A thread's first question makes it read the process-wide value; only afterwards does its own setting stay.
  (void)at::get_num_threads();
  at::set_num_threads(std::max(1, static_cast<int>(device.cores.size())));
}

}  // namespace penstock
