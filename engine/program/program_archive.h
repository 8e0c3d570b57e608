#pragma once

// The archive around an exported program: a zip file whose records are stored as they are, under one folder.
//
// LibTorch has a reader of its own (caffe2/serialize/inline_container.h). It inflates compressed records, so that a
// small file can ask for any amount of memory, and it takes ranges that overlap and names with `..`. A .pt2 file needs
// none of this: torch.export.save only ever stores records.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

struct ProgramArchiveLimits {
  int64_t records = 200'000;
  int name_bytes = 512;
};

// Finds records in the bytes of an archive, and copies none.
//
// Model:     a record has a name without the archive's folder (models/model.json) and a range of the bytes.
// Owns:      nothing: the bytes must outlive it.
// Threads:   immutable; any thread.
// Fails:     INVALID_ARGUMENT / SPEC_INVALID, with the values "field" and "value", for anything that is not exactly
//            such an archive: records that are compressed, encrypted, overlap or lie outside, names that repeat, leave
//            the folder (.., a leading /) or are no plain text, directory and records that tell different stories, a
//            checksum that does not fit.
class ProgramArchive {
 public:
  static absl::StatusOr<ProgramArchive> Open(std::string_view bytes, const ProgramArchiveLimits& limits = {});

  bool Has(const std::string& name) const { return records_.count(name) != 0; }
  std::vector<std::string> Names() const;  // sorted

  // The content of a record, after its checksum was compared.
  absl::StatusOr<std::string_view> Read(const std::string& name) const;

 private:
  struct Record {
    std::string_view data;
    uint32_t checksum = 0;
  };
  std::map<std::string, Record> records_;
};

// INVALID_ARGUMENT / SPEC_INVALID about a program: "exported program FIELD: PROBLEM, got VALUE".
absl::Status ProgramError(std::string_view field, std::string_view problem, std::string_view value);

}  // namespace penstock
