#pragma once

// What the kernel knows of this process.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

struct ProcessStatistics {
  double cpu_seconds = 0;  // user and system
  int64_t resident_bytes = 0;
  int64_t open_files = 0;
  int64_t file_limit = 0;         // the soft limit; INT64_MAX if there is none
  double start_time_seconds = 0;  // since 1970
};

// Reads /proc/self. Fails with INTERNAL if a file is missing or not of the expected form.
absl::StatusOr<ProcessStatistics> ReadProcessStatistics();

// The parts of /proc/self/stat that count: clock ticks and pages are the kernel's units.
struct ProcessStat {
  int64_t user_ticks = 0;
  int64_t system_ticks = 0;
  int64_t start_ticks = 0;  // since the machine started
  int64_t resident_pages = 0;
};

// Reads the line of /proc/PID/stat; the program's name in it may hold spaces and parentheses.
absl::StatusOr<ProcessStat> ParseProcessStat(std::string_view line);

}  // namespace penstock
