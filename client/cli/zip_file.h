#pragma once

// The members of a ZIP archive, stored or deflated; ZIP64 too.
//
// Source: PKWARE's APPNOTE.TXT 6.3.10, 4.3 (headers) and 4.5.3 (ZIP64 sizes).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/input_file.h"

namespace penstock {

// What the archive's directory says of a member.
struct ZipMember {
  std::string name;
  int flags = 0;
  int method = 0;  // 0 stored, 8 deflated
  uint32_t crc = 0;
  int64_t stored_size = 0;  // bytes in the file
  int64_t size = 0;         // bytes of the member
  int64_t header = 0;       // where its own header stands
};

// Fails: usage errors that name the file, for what is no such archive.
absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const std::shared_ptr<const InputFile>& file);

// The bytes of a member, whose checksum was checked: of one that is stored in their place in the file, of one that is
// deflated in memory.
//
// Fails: usage errors that name the file and the member: encrypted, compressed otherwise, cut off, damaged.
absl::StatusOr<ByteRange> OpenZipMember(const std::shared_ptr<const InputFile>& file, const ZipMember& member);

}  // namespace penstock
