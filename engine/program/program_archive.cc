#include "engine/program/program_archive.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

// Source: PKWARE, "APPNOTE.TXT - .ZIP File Format Specification", 6.3.10, sections 4.3 to 4.5.

namespace penstock {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kLocalBytes = 30;
constexpr size_t kEntryBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kEnd64Bytes = 56;
constexpr size_t kLocator64Bytes = 20;
constexpr uint16_t kExtra64 = 1;
constexpr uint16_t kIn64Short = 0xffff;     // the number stands in the 64-bit field instead
constexpr uint32_t kIn64 = 0xffffffff;      // the same
constexpr uint16_t kAllowedFlags = 0x0808;  // a descriptor follows the data; the name is UTF-8

uint64_t Number(std::string_view bytes, size_t at, size_t width) {
  uint64_t number = 0;
  for (size_t i = 0; i < width; ++i) number |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return number;
}
uint16_t Number16(std::string_view bytes, size_t at) { return static_cast<uint16_t>(Number(bytes, at, 2)); }
uint32_t Number32(std::string_view bytes, size_t at) { return static_cast<uint32_t>(Number(bytes, at, 4)); }
uint64_t Number64(std::string_view bytes, size_t at) { return Number(bytes, at, 8); }

uint32_t Checksum(std::string_view bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

absl::Status ArchiveError(std::string_view problem, std::string_view value) {
  return ProgramError("archive", problem, value);
}

// Where the directory stands and how many entries it has.
struct Directory {
  uint64_t begin = 0;
  uint64_t size = 0;
  uint64_t entries = 0;
};

absl::StatusOr<Directory> FindDirectory(std::string_view bytes) {
  if (bytes.size() < kEndBytes) return ArchiveError("must be a zip archive", absl::StrCat(bytes.size(), " bytes"));
  size_t end = bytes.size() - kEndBytes;
  if (Number32(bytes, end) != kEndSignature || Number16(bytes, end + 20) != 0) {
    return ArchiveError("must be a zip archive that ends with its end record, without a comment", "another end");
  }
  if (Number16(bytes, end + 4) != 0 || Number16(bytes, end + 6) != 0) {
    return ArchiveError("must be in one piece", absl::StrCat(Number16(bytes, end + 4), " disks"));
  }
  Directory directory{Number32(bytes, end + 16), Number32(bytes, end + 12), Number16(bytes, end + 10)};
  if (directory.entries != Number16(bytes, end + 8)) return ArchiveError("must be in one piece", "two counts");
  const bool wide = directory.begin == kIn64 || directory.size == kIn64 || directory.entries == kIn64Short;
  const bool located = end >= kLocator64Bytes && Number32(bytes, end - kLocator64Bytes) == kLocator64Signature;
  if (wide && !located) return ArchiveError("must have a 64-bit end record", "none");
  if (located) {
    const size_t locator = end - kLocator64Bytes;
    if (locator < kEnd64Bytes || Number64(bytes, locator + 8) != locator - kEnd64Bytes) {
      return ArchiveError("64-bit end record must stand before its locator", "another place");
    }
    end = locator - kEnd64Bytes;
    if (Number32(bytes, end) != kEnd64Signature || Number64(bytes, end + 4) != kEnd64Bytes - 12 ||
        Number64(bytes, end + 24) != Number64(bytes, end + 32)) {
      return ArchiveError("64-bit end record is not valid", absl::StrCat(Number64(bytes, end + 4), " bytes"));
    }
    const Directory full{Number64(bytes, end + 48), Number64(bytes, end + 40), Number64(bytes, end + 32)};
    if ((directory.begin != kIn64 && directory.begin != full.begin) ||
        (directory.size != kIn64 && directory.size != full.size) ||
        (directory.entries != kIn64Short && directory.entries != full.entries)) {
      return ArchiveError("end records must agree", "different directories");
    }
    directory = full;
  }
  if (directory.begin > end || directory.size != end - directory.begin) {
    return ArchiveError("directory must reach up to the end record",
                        absl::StrCat(directory.size, " bytes at ", directory.begin));
  }
  return directory;
}

// One entry of the directory.
struct Entry {
  std::string name;
  uint64_t size = 0;
  uint64_t offset = 0;  // of its local header
  uint32_t checksum = 0;
};

// Replaces the numbers that are marked as standing in the 64-bit field. In its order: size, stored size, offset.
bool ReadExtra64(std::string_view extra, const std::vector<uint64_t*>& wanted) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const uint16_t kind = Number16(extra, at);
    const size_t size = Number16(extra, at + 2);
    if (size > extra.size() - at - 4) return false;
    if (kind == kExtra64) {
      if (size < 8 * wanted.size()) return false;
      for (size_t i = 0; i < wanted.size(); ++i) *wanted[i] = Number64(extra, at + 4 + 8 * i);
      return true;
    }
    at += 4 + size;
  }
  return wanted.empty();
}

absl::Status CheckName(std::string_view name, int max_bytes) {
  const auto plain = [](unsigned char c) { return c >= 0x20 && c != 0x7f && c != '\\' && c != ':'; };
  if (name.empty() || name.size() > static_cast<size_t>(max_bytes) || !std::all_of(name.begin(), name.end(), plain)) {
    return ArchiveError(absl::StrCat("a record's name must be 1 to ", max_bytes, " plain characters"), name);
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return ArchiveError("a record must stay in the archive", name);
    begin = end + 1;
  }
  return absl::OkStatus();
}

// Reads the entry at `at` and moves on behind it.
absl::StatusOr<Entry> ReadEntry(std::string_view directory, size_t& at, int max_name_bytes) {
  if (directory.size() - at < kEntryBytes || Number32(directory, at) != kEntrySignature) {
    return ArchiveError("directory has no entry", absl::StrCat("byte ", at));
  }
  const uint16_t flags = Number16(directory, at + 8);
  const uint16_t method = Number16(directory, at + 10);
  const size_t name_size = Number16(directory, at + 28);
  const size_t extra_size = Number16(directory, at + 30);
  const size_t comment_size = Number16(directory, at + 32);
  if (directory.size() - at - kEntryBytes < name_size + extra_size + comment_size) {
    return ArchiveError("directory ends within an entry", absl::StrCat("byte ", at));
  }
  Entry entry;
  entry.name = std::string(directory.substr(at + kEntryBytes, name_size));
  PENSTOCK_RETURN_IF_ERROR(CheckName(entry.name, max_name_bytes));
  if ((flags & ~kAllowedFlags) != 0 || method != 0) {
    return ArchiveError(
        "records must be stored, neither compressed nor encrypted (a file of TorchScript is no exported program)",
        entry.name);
  }
  entry.checksum = Number32(directory, at + 16);
  uint64_t stored = Number32(directory, at + 20);
  entry.size = Number32(directory, at + 24);
  entry.offset = Number32(directory, at + 42);
  std::vector<uint64_t*> wide;
  for (uint64_t* number : {&entry.size, &stored, &entry.offset}) {
    if (*number == kIn64) wide.push_back(number);
  }
  if (!ReadExtra64(directory.substr(at + kEntryBytes + name_size, extra_size), wide)) {
    return ArchiveError("an entry has a broken 64-bit field", entry.name);
  }
  if (stored != entry.size) return ArchiveError("a stored record must have one size", entry.name);
  at += kEntryBytes + name_size + extra_size + comment_size;
  return entry;
}

// The bytes of a record, behind its own header, which must agree with the directory.
absl::StatusOr<std::string_view> FindData(std::string_view bytes, const Entry& entry) {
  const auto broken = [&] { return ArchiveError("a record must lie where the directory says", entry.name); };
  if (entry.offset > bytes.size() || bytes.size() - entry.offset < kLocalBytes) return broken();
  const std::string_view local = bytes.substr(entry.offset);
  const size_t head = kLocalBytes + Number16(local, 26) + Number16(local, 28);
  if (Number32(local, 0) != kLocalSignature || Number16(local, 8) != 0 || (Number16(local, 6) & ~kAllowedFlags) != 0 ||
      local.size() < head || local.size() - head < entry.size ||
      local.substr(kLocalBytes, Number16(local, 26)) != entry.name) {
    return broken();
  }
  return local.substr(head, entry.size);
}

}  // namespace

absl::Status ProgramError(std::string_view field, std::string_view problem, std::string_view value) {
  const std::string shown = Shortened(value);
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("exported program ", absl::string_view(field.data(), field.size()), ": ",
                            absl::string_view(problem.data(), problem.size()), ", got ", shown))
      .With("field", field)
      .With("value", shown);
}

absl::StatusOr<ProgramArchive> ProgramArchive::Open(std::string_view bytes, const ProgramArchiveLimits& limits) {
  PENSTOCK_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes));
  if (directory.entries > static_cast<uint64_t>(limits.records)) {
    return ArchiveError(absl::StrCat("must have at most ", limits.records, " records"),
                        absl::StrCat(directory.entries));
  }
  const std::string_view entries = bytes.substr(directory.begin, directory.size);
  const std::string_view contents = bytes.substr(0, directory.begin);
  ProgramArchive archive;
  std::optional<std::string> folder;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  size_t at = 0;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const Entry entry, ReadEntry(entries, at, limits.name_bytes));
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view data, FindData(contents, entry));
    const size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(0, slash) != folder.value_or(entry.name.substr(0, slash))) {
      return ArchiveError("all records must stand in one folder", entry.name);
    }
    folder = entry.name.substr(0, slash);
    if (!archive.records_.emplace(entry.name.substr(slash + 1), Record{data, entry.checksum}).second) {
      return ArchiveError("repeats a record", entry.name);
    }
    ranges.emplace_back(entry.offset, static_cast<uint64_t>(data.data() + data.size() - bytes.data()));
  }
  if (at != entries.size()) return ArchiveError("directory has more than its entries", absl::StrCat("byte ", at));
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return ArchiveError("records must not overlap", absl::StrCat("byte ", ranges[i].first));
    }
  }
  return archive;
}

std::vector<std::string> ProgramArchive::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : records_) names.push_back(name);
  return names;
}

absl::StatusOr<std::string_view> ProgramArchive::Read(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) return ArchiveError("must have a record", name);
  if (Checksum(found->second.data) != found->second.checksum) {
    return ArchiveError("a record's content does not fit its checksum", name);
  }
  return found->second.data;
}

}  // namespace penstock
