#include "engine/base/log_writer.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/guard.h"

namespace penstock {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kPollMillis = 50;
constexpr int kSignalPollMillis = 10;
// Messages are sentences of the code: so many at most have a rate of their own.
constexpr size_t kMaxMessages = 1024;

}  // namespace

LogWriter::LogWriter(Options options)
    : options_(std::move(options)), thread_(std::make_unique<Thread>("ps-log", [this] { Run(); })) {}

LogWriter::~LogWriter() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  thread_->Join();
}

bool LogWriter::Admit(std::string_view message) {
  absl::MutexLock lock(&mu_);
  const int64_t now = options_.clock->NowNanos();
  auto found = rates_.find(message);
  if (found == rates_.end()) {
    if (rates_.size() == kMaxMessages) return true;
    found = rates_.try_emplace(std::string(message), Rate{static_cast<double>(options_.burst), now, 0}).first;
  }
  Rate& rate = found->second;
  const double gained = static_cast<double>(now - rate.nanos) / kSecond * static_cast<double>(options_.per_second);
  rate.tokens = std::min(rate.tokens + gained, static_cast<double>(options_.burst));
  rate.nanos = now;
  if (rate.tokens >= 1) {
    --rate.tokens;
    return true;
  }
  if (rate_dropped_ == 0) rate_notice_nanos_ = now + kSecond;
  ++rate_dropped_;
  ++rate.dropped;
  Drop(LogDrop::kRate);
  return false;
}

void LogWriter::Add(std::string line) {
  absl::MutexLock lock(&mu_);
  if (bytes_ + line.size() > options_.queue_bytes) {
    ++full_dropped_;
    Drop(LogDrop::kFull);
    return;
  }
  bytes_ += line.size();
  queue_.push_back(std::move(line));
  ++added_;
}

bool LogWriter::Flush(absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  const int64_t wanted = added_;
  const auto written = [this, wanted] { return done_ >= wanted; };
  return mu_.AwaitWithTimeout(absl::Condition(&written), patience);
}

void LogWriter::FlushInSignalHandler(absl::Duration patience) const {
  const int64_t wanted = added_;
  const int64_t max_polls = absl::ToInt64Milliseconds(patience) / kSignalPollMillis;
  // A handler may wait for no lock.
  for (int64_t i = 0; done_ < wanted && i < max_polls; ++i) poll(nullptr, 0, kSignalPollMillis);
}

bool LogWriter::Runnable() const { return closing_ || !queue_.empty() || full_dropped_ > 0; }

void LogWriter::Run() {
  while (true) {
    std::string line;
    std::optional<Due> due;
    bool taken = false;
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(this, &LogWriter::Runnable), absl::Seconds(1));
      taken = !queue_.empty();
      if (taken) {
        line = std::move(queue_.front());
        queue_.pop_front();
      }
      due = TakeDue();
      if (closing_ && !taken && !due.has_value()) return;
    }
    Write(line);
    while (due.has_value()) {
      Report(*due);
      absl::MutexLock lock(&mu_);
      due = TakeDue();
    }
    absl::MutexLock lock(&mu_);
    bytes_ -= line.size();
    if (taken) ++done_;
  }
}

std::optional<LogWriter::Due> LogWriter::TakeDue() {
  if (full_dropped_ > 0) return Due{LogDrop::kFull, "", std::exchange(full_dropped_, 0)};
  if (rate_dropped_ == 0 || (!closing_ && options_.clock->NowNanos() < rate_notice_nanos_)) return std::nullopt;
  for (auto& [message, rate] : rates_) {
    if (rate.dropped > 0) return Due{LogDrop::kRate, message, std::exchange(rate.dropped, 0)};
  }
  rate_dropped_ = 0;
  return std::nullopt;
}

// Without memory the notice is lost, and no line after it.
void LogWriter::Report(const Due& due) {
  const absl::Status made =
      Guarded("a notice of the log", [&] { Write(options_.notice(due.cause, due.message, due.lines)); });
  if (!made.ok()) Drop(LogDrop::kFailed);
}

// In pieces that a pipe which is ready takes without blocking, so that it can always be ended.
void LogWriter::Write(std::string_view line) {
  while (!line.empty()) {
    pollfd ready = {options_.descriptor, POLLOUT, 0};
    const int count = poll(&ready, 1, kPollMillis);
    if (count == 0 && closing_) return Drop(LogDrop::kFailed);
    if (count <= 0) continue;
    const ssize_t written = ::write(options_.descriptor, line.data(), std::min<size_t>(line.size(), PIPE_BUF));
    if (written >= 0) {
      line.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      return Drop(LogDrop::kFailed);
    }
  }
}

}  // namespace penstock
