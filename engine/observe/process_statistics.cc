#include "engine/observe/process_statistics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status Unreadable(std::string_view what) {
  return Error(absl::StatusCode::kInternal, "BUG", "the kernel's account of this process can't be read")
      .With("file", what);
}

// The start of a file of /proc; such files have no size of their own.
absl::StatusOr<std::string> ReadKernelFile(const char* path) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return Unreadable(path);
  std::string text(8192, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

int64_t CountOpenFiles() {
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int64_t entries = 0;
  while (::readdir(directory) != nullptr) ++entries;
  ::closedir(directory);
  return entries - 3;  // ".", ".." and this directory
}

// Seconds since 1970 at which the machine started.
absl::StatusOr<double> BootTime() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadKernelFile("/proc/stat"));
  constexpr std::string_view kKey = "\nbtime ";
  const size_t at = text.find(kKey);
  if (at == std::string::npos) return Unreadable("/proc/stat");
  return std::strtod(text.c_str() + at + kKey.size(), nullptr);
}

}  // namespace

absl::StatusOr<ProcessStat> ParseProcessStat(std::string_view line) {
  const size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos) return Unreadable("/proc/self/stat");
  const std::string rest(line.substr(name_end + 1));
  const std::vector<std::string> fields = absl::StrSplit(rest, ' ', absl::SkipEmpty());
  // Numbers as in proc(5); field 3, the state, is the first after the name.
  const auto field = [&](size_t number, int64_t* value) {
    return number - 3 < fields.size() && absl::SimpleAtoi(fields[number - 3], value);
  };
  ProcessStat stat;
  if (!field(14, &stat.user_ticks) || !field(15, &stat.system_ticks) || !field(22, &stat.start_ticks) ||
      !field(24, &stat.resident_pages)) {
    return Unreadable("/proc/self/stat");
  }
  return stat;
}

absl::StatusOr<ProcessStatistics> ReadProcessStatistics() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string line, ReadKernelFile("/proc/self/stat"));
  PENSTOCK_ASSIGN_OR_RETURN(const ProcessStat stat, ParseProcessStat(line));
  static const absl::StatusOr<double> boot_time = BootTime();
  PENSTOCK_RETURN_IF_ERROR(boot_time.status());

  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  ProcessStatistics statistics;
  statistics.cpu_seconds = static_cast<double>(stat.user_ticks + stat.system_ticks) / ticks_per_second;
  statistics.resident_bytes = stat.resident_pages * ::sysconf(_SC_PAGESIZE);
  statistics.start_time_seconds = *boot_time + static_cast<double>(stat.start_ticks) / ticks_per_second;
  statistics.open_files = CountOpenFiles();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    statistics.file_limit =
        limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(limit.rlim_cur);
  }
  return statistics;
}

}  // namespace penstock
