#pragma once

// A file of whole lines that rotates by its size.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// Appends lines to FILE; when it would pass its limit, FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on.
//
// Model:     A line is there as a whole or not at all: what was written of one that the disk has no room for is taken
//            back. Every file has the mode 0600. A pipe or a device is written to, and never rotated.
// Owns:      the open file. Nobody else may rotate it.
// Threads:   one at a time.
// Fails:     Open(): INVALID_ARGUMENT / FIELD_INVALID naming --audit-log and the path. Append(): RESOURCE_EXHAUSTED /
//            STORAGE_FULL, or INTERNAL, with the system's words; the next call tries anew. A rotation that fails
//            is logged and tried again after as many bytes; meanwhile the file grows.
class AuditFile {
 public:
  struct Options {
    std::string path;
    int64_t max_bytes = 0;  // of each file
    int old_files = 0;      // that are kept beside the newest; older ones are deleted
  };
  static absl::StatusOr<std::unique_ptr<AuditFile>> Open(const Options& options);
  ~AuditFile();
  AuditFile(const AuditFile&) = delete;
  AuditFile& operator=(const AuditFile&) = delete;

  // `line` with its end.
  absl::Status Append(std::string_view line);

 private:
  AuditFile(Options options, int descriptor, bool plain, int64_t size)
      : options_(std::move(options)),
        descriptor_(descriptor),
        plain_(plain),
        size_(size),
        rotate_at_(options_.max_bytes) {}
  absl::Status Rotate();

  const Options options_;
  int descriptor_;
  const bool plain_;   // a file, which can be cut and renamed
  int64_t size_;       // bytes of whole lines
  int64_t rotate_at_;  // bytes that the file may have
  bool torn_ = false;  // it ends within a line, which the next one ends
};

}  // namespace penstock
