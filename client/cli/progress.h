#pragma once

// Live progress: one rewritten line on a terminal, a plain line now and then elsewhere.

#include <cstdint>
#include <ostream>
#include <string>

namespace penstock {

// Shows where a long command stands.
//
// Threads:   one.
// Units:     `total` steps; elsewhere than on a terminal about twenty lines are written, the first and last included.
class Progress {
 public:
  Progress(std::ostream& out, bool terminal, int64_t total) : out_(out), terminal_(terminal), total_(total) {}

  // `done` steps are done; `line` says so.
  void Show(int64_t done, const std::string& line);

  // Ends a rewritten line.
  void Close();

 private:
  std::ostream& out_;
  const bool terminal_;
  const int64_t total_;
  int64_t next_shown_ = 1;
  bool open_ = false;
};

}  // namespace penstock
