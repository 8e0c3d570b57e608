// Walks foreign logs of SQLite. Half of them get right checksums up to a frame, so that what comes behind one is
// reached.

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/journal/wal_check.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using penstock::testing::Demand;
using penstock::testing::DemandReason;

constexpr size_t kHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;

uint32_t NumberAt(const std::string& log, size_t at, bool big_endian) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(log[at + (big_endian ? i : 3 - i)]);
  return value;
}

void PutNumber(std::string& log, size_t at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) log[at + i] = static_cast<char>(value >> (24 - 8 * i));
}

// SQLite's checksums, written down a second time.
struct Sums {
  uint32_t first = 0;
  uint32_t second = 0;

  void Add(const std::string& log, size_t from, size_t size, bool big_endian) {
    for (size_t at = from; at < from + size; at += 8) {
      first += NumberAt(log, at, big_endian) + second;
      second += NumberAt(log, at + 4, big_endian) + first;
    }
  }
  void Put(std::string& log, size_t at) const {
    PutNumber(log, at, first);
    PutNumber(log, at + 4, second);
  }
};

// Gives the header and the first frames what a writer would have; returns how many frames are right.
int64_t MakeRight(std::string& log, int64_t frames) {
  if (log.size() < kHeaderBytes) return 0;
  const bool big_endian = (log[3] & 1) != 0;
  PutNumber(log, 0, 0x377f0682 + (big_endian ? 1 : 0));
  PutNumber(log, 4, 3007000);
  PutNumber(log, 8, 512);
  Sums sums;
  sums.Add(log, 0, 24, big_endian);
  sums.Put(log, 24);
  int64_t right = 0;
  for (size_t at = kHeaderBytes; right < frames && at + kFrameHeaderBytes + 512 <= log.size(); ++right) {
    if (NumberAt(log, at, true) == 0) PutNumber(log, at, 1);
    log.replace(at + 8, 8, log, 16, 8);
    sums.Add(log, at, 8, big_endian);
    sums.Add(log, at + kFrameHeaderBytes, 512, big_endian);
    sums.Put(log, at + 16);
    at += kFrameHeaderBytes + 512;
  }
  return right;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string log(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool made = (data[0] & 1) != 0;
  const int64_t right = made ? MakeRight(log, data[0] >> 1) : 0;
  const absl::StatusOr<penstock::WalSummary> summary = penstock::CheckWal(log);
  DemandReason(summary.status());
  if (!summary.ok()) return 0;
  Demand(summary->commits <= summary->frames, "there are more commits than frames");
  Demand(summary->frames * (kFrameHeaderBytes + 512) <= log.size(), "there are more frames than the log has bytes for");
  if (!made) return 0;
  // Each right commit is found; a commit behind them is so by chance.
  int64_t last_commit = 0;
  for (int64_t frame = 0; frame < right; ++frame) {
    const size_t at = kHeaderBytes + static_cast<size_t>(frame) * (kFrameHeaderBytes + 512);
    if (NumberAt(log, at + 4, true) != 0) last_commit = frame + 1;
  }
  Demand(summary->frames >= last_commit, "a right commit is missed");
  return 0;
}
