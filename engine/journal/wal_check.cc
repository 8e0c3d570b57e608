// The format is described at https://www.sqlite.org/fileformat2.html#the_write_ahead_log.

#include "engine/journal/wal_check.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "engine/journal/journal_errors.h"

namespace penstock {
namespace {

constexpr size_t kHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;
// The last bit says in which order of bytes the checksums were taken.
constexpr uint32_t kMagic = 0x377f0682;
constexpr uint32_t kVersion = 3007000;

uint32_t BigEndian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

uint32_t LittleEndian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + i - 1]);
  return value;
}

struct WalChecksum {
  uint32_t first = 0;
  uint32_t second = 0;
  bool operator==(const WalChecksum&) const = default;
};

// Over a number of bytes that 8 divides.
WalChecksum Extend(WalChecksum sum, std::string_view bytes, bool big_endian) {
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    sum.first += (big_endian ? BigEndian(bytes, at) : LittleEndian(bytes, at)) + sum.second;
    sum.second += (big_endian ? BigEndian(bytes, at + 4) : LittleEndian(bytes, at + 4)) + sum.first;
  }
  return sum;
}

WalChecksum StoredAt(std::string_view bytes, size_t at) { return {BigEndian(bytes, at), BigEndian(bytes, at + 4)}; }

// The header of a log, if it is one.
struct WalHeader {
  bool whole = false;
  bool big_endian = false;
  size_t page_bytes = 0;
  WalChecksum checksum = {};
  std::string_view salts = {};  // 8 bytes
};

WalHeader ReadHeader(std::string_view log) {
  WalHeader header;
  const uint32_t magic = BigEndian(log, 0);
  header.big_endian = (magic & 1) != 0;
  header.page_bytes = BigEndian(log, 8);
  header.salts = log.substr(16, 8);
  header.checksum = Extend({}, log.substr(0, 24), header.big_endian);
  const bool sizes =
      header.page_bytes >= 512 && header.page_bytes <= 65536 && (header.page_bytes & (header.page_bytes - 1)) == 0;
  header.whole = (magic & ~uint32_t{1}) == kMagic && BigEndian(log, 4) == kVersion && sizes &&
                 header.checksum == StoredAt(log, 24);
  return header;
}

// Where a header is broken, its page size and salts may be what is: any pair of frames at a usual distance that have
// the same salts, one of them a commit, shows that the log was written.
bool HoldsCommit(std::string_view log) {
  for (size_t page_bytes = 512; page_bytes <= 65536; page_bytes *= 2) {
    const size_t frame_bytes = kFrameHeaderBytes + page_bytes;
    if (log.size() < kHeaderBytes + frame_bytes) break;
    const std::string_view salts = log.substr(kHeaderBytes + 8, 8);
    const bool first_commits = BigEndian(log, kHeaderBytes + 4) != 0;
    if (first_commits && log.size() == kHeaderBytes + frame_bytes) return true;
    for (size_t at = kHeaderBytes + frame_bytes; at + frame_bytes <= log.size(); at += frame_bytes) {
      if (log.substr(at + 8, 8) == salts && (first_commits || BigEndian(log, at + 4) != 0)) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<WalSummary> CheckWal(std::string_view log) {
  WalSummary summary;
  if (log.size() < kHeaderBytes) {
    summary.torn = !log.empty();
    return summary;
  }
  const WalHeader header = ReadHeader(log);
  if (!header.whole) {
    // The header is synced before the first frame is written, so only damage breaks it.
    if (HoldsCommit(log)) return JournalCorrupt("the header of the write-ahead log is broken, and commits follow it");
    summary.torn = true;
    return summary;
  }

  const size_t frame_bytes = kFrameHeaderBytes + header.page_bytes;
  const int64_t frames = static_cast<int64_t>((log.size() - kHeaderBytes) / frame_bytes);
  const auto frame_at = [&](int64_t index) {
    return log.substr(kHeaderBytes + static_cast<size_t>(index) * frame_bytes, frame_bytes);
  };
  const auto is_current = [&](std::string_view frame) { return frame.substr(8, 8) == header.salts; };
  // A damaged salt leaves the other one. A log that is begun anew has both of its own.
  const auto belongs = [&](std::string_view frame) {
    return frame.substr(8, 4) == header.salts.substr(0, 4) || frame.substr(12, 4) == header.salts.substr(4, 4);
  };
  const auto commits = [](std::string_view frame) { return BigEndian(frame, 4) != 0; };

  WalChecksum checksum = header.checksum;
  int64_t index = 0;
  for (; index < frames; ++index) {
    const std::string_view frame = frame_at(index);
    if (!is_current(frame) || BigEndian(frame, 0) == 0) break;
    checksum = Extend(checksum, frame.substr(0, 8), header.big_endian);
    checksum = Extend(checksum, frame.substr(kFrameHeaderBytes), header.big_endian);
    if (checksum != StoredAt(frame, 16)) break;
    if (!commits(frame)) continue;
    summary.frames = index + 1;
    ++summary.commits;
  }
  summary.torn = summary.frames * static_cast<int64_t>(frame_bytes) + static_cast<int64_t>(kHeaderBytes) !=
                 static_cast<int64_t>(log.size());

  // A commit behind the broken frame that is followed by yet another frame was synced, and so was what broke.
  bool commit_behind = index < frames && belongs(frame_at(index)) && commits(frame_at(index));
  for (int64_t behind = index + 1; behind < frames; ++behind) {
    const std::string_view frame = frame_at(behind);
    if (!belongs(frame)) continue;
    if (commit_behind) {
      return JournalCorrupt(absl::StrCat("frame ", index + 1, " of the write-ahead log is broken, and frame ",
                                         behind + 1, " comes after a commit behind it"));
    }
    commit_behind = commits(frame);
  }
  return summary;
}

}  // namespace penstock
