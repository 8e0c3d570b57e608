#pragma once

// How far a journal has told its callers that their calls are durable, written beside it without a sync.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3_file;

namespace penstock {

// A small file with the number of the last commit that was acknowledged.
//
// Model:     A log whose last commit is damaged looks as one whose last commit was torn. This number tells them apart:
//            it is written after each commit's sync and before its acknowledgement, so a journal that holds fewer
//            commits has lost one. It is not synced, so power that fails may leave an older number, never a newer one.
// Owns:      The file, opened through SQLite's VFS, so that a disk of the tests has it too.
// Threads:   one at a time.
class AcknowledgedMark {
 public:
  // `vfs`: SQLite's name; null: the machine's.
  static absl::StatusOr<std::unique_ptr<AcknowledgedMark>> Open(const std::string& path, const char* vfs);
  ~AcknowledgedMark();
  AcknowledgedMark(const AcknowledgedMark&) = delete;
  AcknowledgedMark& operator=(const AcknowledgedMark&) = delete;

  // 0 where the file is new, or no mark: its absence is no damage.
  int64_t Read() const;
  // What fails is no failure of the commit, and leaves an older number.
  void Write(int64_t commits);

 private:
  explicit AcknowledgedMark(std::string path) : path_(std::move(path)) {}

  const std::string path_;        // SQLite keeps a pointer to it
  std::vector<int64_t> storage_;  // of the open file: SQLite has its caller give the memory
  sqlite3_file* file_ = nullptr;
};

}  // namespace penstock
