#pragma once

// What a command writes to a file: all of it, or nothing.

#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/cli/stop_signal.h"

namespace penstock {

// A file that is replaced as a whole.
//
// Model:     Bytes go to a new file beside PATH, PATH.N.part with the first N that is free, which Commit() syncs and
//            renames to PATH; until then PATH is as it was. Of several at one PATH the last to commit wins. A link's
//            target is replaced, not the link. A device or a pipe gets its bytes at once, as does `out` for "-".
// Lifecycle: that file comes with Open(), or with the first bytes; the destructor removes it where Commit() did not succeed.
// Fails:     INTERNAL / OUTPUT_NOT_WRITTEN with the path and the system's words; CANCELLED / WORK_CANCELLED where an
//            interrupt ended the wait for a pipe's reader or for its room.
class OutputFile {
 public:
  OutputFile(std::string path, std::ostream& out, const StopSignal& stop)
      : path_(std::move(path)), out_(out), stop_(stop) {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Finds out whether it can be written before there is something to write.
  absl::Status Open();
  absl::Status Append(std::string_view bytes);
  absl::Status Commit();

 private:
  absl::Status Stopped() const;
  absl::Status Failed(int error) const;

  const std::string path_;
  std::ostream& out_;
  const StopSignal& stop_;
  std::string target_;  // what `path_` leads to
  std::string part_;    // empty: none, or it is gone
  int descriptor_ = -1;
};

}  // namespace penstock
