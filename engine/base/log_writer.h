#pragma once

// Lines on their way to a descriptor that may stall.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"

namespace penstock {

// Why a line was not written: too many with the same message lately, no room among those that wait, or the descriptor
// refused it.
enum class LogDrop { kRate, kFull, kFailed };
inline constexpr std::array<std::string_view, 3> kLogDropNames = {"rate", "full", "failed"};

// Writes lines on a thread of its own.
//
// Model:     A queue of lines with a bound of bytes; what does not fit is dropped. Of each message a burst of lines is
//            let through, then so many per second. Drops are counted, and reported in lines that `notice` makes: of the
//            queue when it has room again, of a message once per second.
// Threads:   Any method from any thread; none but Flush() and the destructor waits for the descriptor.
// Lifecycle: The destructor drops what is not written within a moment; Flush() first.
class LogWriter {
 public:
  struct Options {
    int descriptor = 2;
    size_t queue_bytes = 4 << 20;
    int64_t burst = 200;
    int64_t per_second = 20;
    Clock* clock = RealClock();
    // The line, with its newline, that reports the number of dropped lines; the message is empty where they had
    // several.
    std::function<std::string(LogDrop cause, std::string_view message, int64_t lines)> notice;
  };
  explicit LogWriter(Options options);
  ~LogWriter();

  // Whether a line with this message may be written now; counts it as dropped if not.
  bool Admit(std::string_view message) ABSL_LOCKS_EXCLUDED(mu_);
  // `line` ends with a newline.
  void Add(std::string line) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until what was added before is written, or so long; returns whether it is.
  bool Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a signal handler.
  void FlushInSignalHandler(absl::Duration patience) const;

  int64_t dropped(LogDrop cause) const { return dropped_[static_cast<size_t>(cause)]; }

 private:
  // Lines of one message: what is left of its burst, and how many were dropped since the last notice.
  struct Rate {
    double tokens = 0;
    int64_t nanos = 0;
    int64_t dropped = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool Runnable() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Lines that were dropped, and are to be told of.
  struct Due {
    LogDrop cause;
    std::string_view message;  // of a rate, which stays
    int64_t lines;
  };
  // The next that is due; all are when it closes. Takes no memory.
  std::optional<Due> TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report(const Due& due) ABSL_LOCKS_EXCLUDED(mu_);
  void Write(std::string_view line);
  void Drop(LogDrop cause) { ++dropped_[static_cast<size_t>(cause)]; }

  const Options options_;
  std::array<std::atomic<int64_t>, 3> dropped_ = {};
  std::atomic<int64_t> added_ = 0;
  std::atomic<int64_t> done_ = 0;  // of those added: written or given up
  std::atomic<bool> closing_ = false;

  absl::Mutex mu_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the queue and of the line that is being written
  std::map<std::string, Rate, std::less<>> rates_ ABSL_GUARDED_BY(mu_);
  int64_t rate_dropped_ ABSL_GUARDED_BY(mu_) = 0;  // since the last notices
  int64_t rate_notice_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t full_dropped_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
