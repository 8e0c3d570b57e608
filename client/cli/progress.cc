#include "client/cli/progress.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr int kPlainLines = 20;

}  // namespace

void Progress::Show(int64_t done, const std::string& line) {
  if (terminal_) {
    out_ << "\r" << line << "\x1b[K" << std::flush;
    open_ = true;
    return;
  }
  if (done < next_shown_ && done < total_) return;
  const int64_t interval = std::max<int64_t>(1, total_ / kPlainLines);
  next_shown_ = (done / interval + 1) * interval;
  out_ << line << "\n" << std::flush;
}

void Progress::Close() {
  if (open_) out_ << "\n" << std::flush;
  open_ = false;
}

}  // namespace penstock
