#include "client/cli/zip_file.h"

#include <isa-l/crc.h>
#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kEndBytes = 22;  // of the record that ends the archive, without its comment
constexpr int64_t kMaxCommentBytes = 0xffff;
constexpr int64_t kLocatorBytes = 20;  // of what tells where the ZIP64 record is: it stands before the end's
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kEntryBytes = 46;
constexpr int64_t kHeaderBytes = 30;
constexpr int64_t kMaxDirectoryBytes = 64 << 20;
constexpr int64_t kPieceBytes = 256 << 10;

constexpr uint64_t kEndMark = 0x06054b50;
constexpr uint64_t kLocatorMark = 0x07064b50;
constexpr uint64_t kEnd64Mark = 0x06064b50;
constexpr uint64_t kEntryMark = 0x02014b50;
constexpr uint64_t kHeaderMark = 0x04034b50;
constexpr uint64_t kSizes64 = 0x0001;        // the field of an entry that holds sizes above 4 GiB
constexpr uint64_t kElsewhere = 0xffffffff;  // a size that stands there

constexpr int kEncrypted = 1;
constexpr int kStored = 0;
constexpr int kDeflated = 8;

// `count` bytes, which the caller knows to be there.
uint64_t Number(absl::string_view bytes, size_t at, int count) {
  uint64_t number = 0;
  for (int i = count - 1; i >= 0; --i) number = number << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
  return number;
}

absl::Status Broken(const std::string& path, absl::string_view what) {
  return UsageError(path, absl::StrCat("is no whole ZIP archive: ", what));
}

struct Directory {
  uint64_t offset = 0;
  uint64_t size = 0;
};

absl::StatusOr<Directory> FindDirectory(const ByteRange& whole) {
  const int64_t tail_bytes = std::min(whole.size(), kEndBytes + kMaxCommentBytes);
  const int64_t tail_begin = whole.size() - tail_bytes;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string tail, whole.Read(tail_begin, tail_bytes));
  for (int64_t at = tail_bytes - kEndBytes; at >= 0; --at) {
    const auto place = static_cast<size_t>(at);
    if (Number(tail, place, 4) != kEndMark) continue;
    if (static_cast<int64_t>(Number(tail, place + 20, 2)) != tail_bytes - at - kEndBytes) continue;  // its comment
    const Directory found = {Number(tail, place + 16, 4), Number(tail, place + 12, 4)};
    if (found.offset != kElsewhere && found.size != kElsewhere && Number(tail, place + 10, 2) != 0xffff) return found;
    const int64_t locator_at = tail_begin + at - kLocatorBytes;
    if (locator_at < 0) return Broken(whole.path(), "it has no ZIP64 record");
    PENSTOCK_ASSIGN_OR_RETURN(const std::string locator, whole.Read(locator_at, kLocatorBytes));
    if (Number(locator, 0, 4) != kLocatorMark) return Broken(whole.path(), "it has no ZIP64 record");
    PENSTOCK_ASSIGN_OR_RETURN(const std::string end,
                              whole.Read(static_cast<int64_t>(Number(locator, 8, 8)), kEnd64Bytes));
    if (Number(end, 0, 4) != kEnd64Mark) return Broken(whole.path(), "its ZIP64 record is damaged");
    return Directory{Number(end, 48, 8), Number(end, 40, 8)};
  }
  return Broken(whole.path(), "it has no directory");
}

// Sizes that do not fit into an entry, in the order of its fields.
bool TakeSizes64(absl::string_view extra, std::initializer_list<uint64_t*> fields) {
  while (extra.size() >= 4) {
    const uint64_t id = Number(extra, 0, 2);
    const uint64_t length = Number(extra, 2, 2);
    extra.remove_prefix(4);
    if (length > extra.size()) return false;
    absl::string_view values = extra.substr(0, length);
    extra.remove_prefix(length);
    if (id != kSizes64) continue;
    for (uint64_t* field : fields) {
      if (*field != kElsewhere) continue;
      if (values.size() < 8) return false;
      *field = Number(values, 0, 8);
      values.remove_prefix(8);
    }
  }
  return true;
}

absl::Status CheckSum(const ByteRange& bytes, const ZipMember& member) {
  uint32_t sum = 0;
  for (int64_t at = 0; at < bytes.size(); at += kPieceBytes) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string piece, bytes.Read(at, std::min(kPieceBytes, bytes.size() - at)));
    sum = crc32_gzip_refl(sum, reinterpret_cast<const unsigned char*>(piece.data()), piece.size());
  }
  if (sum == member.crc) return absl::OkStatus();
  return UsageError(bytes.path(), absl::StrCat(member.name, ": is damaged: its checksum is ", absl::Hex(sum),
                                               " and should be ", absl::Hex(member.crc)));
}

absl::StatusOr<std::string> Inflate(const ByteRange& deflated, const ZipMember& member) {
  const auto broken = [&](absl::string_view what) {
    return UsageError(deflated.path(), absl::StrCat(member.name, ": is damaged: ", what));
  };
  const auto state = std::make_unique<inflate_state>();
  isal_inflate_init(state.get());
  std::string out;
  std::string in;
  std::string piece(kPieceBytes, '\0');
  int64_t taken = 0;
  while (state->block_state != ISAL_BLOCK_FINISH) {
    if (state->avail_in == 0) {
      PENSTOCK_ASSIGN_OR_RETURN(in, deflated.Read(taken, std::min(kPieceBytes, deflated.size() - taken)));
      taken += static_cast<int64_t>(in.size());
      state->next_in = reinterpret_cast<uint8_t*>(in.data());
      state->avail_in = static_cast<uint32_t>(in.size());
    }
    const uint32_t given = state->avail_in;
    state->next_out = reinterpret_cast<uint8_t*>(piece.data());
    state->avail_out = static_cast<uint32_t>(piece.size());
    if (isal_inflate(state.get()) < 0) return broken("it can't be inflated");
    const size_t got = piece.size() - state->avail_out;
    if (got == 0 && state->avail_in == given && state->block_state != ISAL_BLOCK_FINISH) return broken("it is cut off");
    out.append(piece, 0, got);
    if (static_cast<int64_t>(out.size()) > member.size) break;
  }
  if (static_cast<int64_t>(out.size()) != member.size) {
    return broken(absl::StrCat("its size is not ", member.size, " bytes, as the archive says"));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const std::shared_ptr<const InputFile>& file) {
  const ByteRange whole(file, 0, file->size());
  PENSTOCK_ASSIGN_OR_RETURN(const Directory place, FindDirectory(whole));
  if (place.size > kMaxDirectoryBytes) {
    return Broken(file->path(), absl::StrCat("a directory of ", place.size, " bytes is too large"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string bytes,
                            whole.Read(static_cast<int64_t>(place.offset), static_cast<int64_t>(place.size)));
  std::vector<ZipMember> members;
  absl::string_view rest = bytes;
  while (!rest.empty()) {
    if (rest.size() < kEntryBytes || Number(rest, 0, 4) != kEntryMark) {
      return Broken(file->path(), "its directory is damaged");
    }
    const size_t name = Number(rest, 28, 2);
    const size_t extra = Number(rest, 30, 2);
    const size_t length = kEntryBytes + name + extra + Number(rest, 32, 2);
    if (rest.size() < length) return Broken(file->path(), "its directory is damaged");
    uint64_t stored_size = Number(rest, 20, 4);
    uint64_t size = Number(rest, 24, 4);
    uint64_t header = Number(rest, 42, 4);
    if (!TakeSizes64(rest.substr(kEntryBytes + name, extra), {&size, &stored_size, &header})) {
      return Broken(file->path(), "the ZIP64 sizes of its directory are damaged");
    }
    members.push_back({.name = std::string(rest.substr(kEntryBytes, name)),
                       .flags = static_cast<int>(Number(rest, 8, 2)),
                       .method = static_cast<int>(Number(rest, 10, 2)),
                       .crc = static_cast<uint32_t>(Number(rest, 16, 4)),
                       .stored_size = static_cast<int64_t>(stored_size),
                       .size = static_cast<int64_t>(size),
                       .header = static_cast<int64_t>(header)});
    rest.remove_prefix(length);
  }
  return members;
}

absl::StatusOr<ByteRange> OpenZipMember(const std::shared_ptr<const InputFile>& file, const ZipMember& member) {
  const auto refused = [&](absl::string_view what) {
    return UsageError(file->path(), absl::StrCat(member.name, ": ", what));
  };
  if ((member.flags & kEncrypted) != 0) return refused("is encrypted");
  if (member.method != kStored && member.method != kDeflated) {
    return refused(absl::StrCat("must be stored or deflated, is compressed by method ", member.method));
  }
  const ByteRange whole(file, 0, file->size());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string header, whole.Read(member.header, kHeaderBytes));
  if (Number(header, 0, 4) != kHeaderMark) return refused("is damaged: it has no header");
  const int64_t begin =
      member.header + kHeaderBytes + static_cast<int64_t>(Number(header, 26, 2) + Number(header, 28, 2));
  if (begin > file->size() || member.stored_size < 0 || member.stored_size > file->size() - begin) {
    return refused(absl::StrCat("is cut off: its ", member.stored_size, " bytes do not fit into the file"));
  }
  ByteRange bytes(file, begin, member.stored_size);
  if (member.method == kDeflated) {
    PENSTOCK_ASSIGN_OR_RETURN(std::string inflated, Inflate(bytes, member));
    bytes = ByteRange(file, std::move(inflated));
  } else if (member.size != member.stored_size) {
    return refused(absl::StrCat("is damaged: stored bytes are ", member.stored_size, " and ", member.size));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSum(bytes, member));
  return bytes;
}

}  // namespace penstock
