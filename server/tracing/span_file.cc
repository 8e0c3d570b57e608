#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "server/tracing/span_sink.h"

namespace penstock {
namespace {

class SpanFile final : public SpanSink {
 public:
  SpanFile(int descriptor, bool torn) : descriptor_(descriptor), torn_(torn) {}
  ~SpanFile() override { ::close(descriptor_); }

  absl::Status Send(std::string_view json, const std::atomic<int64_t>&) override {
    std::string line = torn_ ? "\n" : "";  // ends a line that was begun, so that this one can be read
    line.append(json);
    line += '\n';
    size_t done = 0;
    while (done < line.size()) {
      const ssize_t wrote = ::write(descriptor_, line.data() + done, line.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        return absl::UnavailableError(std::strerror(errno));
      }
      done += static_cast<size_t>(wrote);
      torn_ = line[done - 1] != '\n';
    }
    return absl::OkStatus();
  }

 private:
  const int descriptor_;
  bool torn_;  // the file ends within a line
};

// An earlier life may have been cut off. Pipes and devices have no lines.
bool EndsWithinALine(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return false;
  struct stat info {};
  char last = '\n';
  if (::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    (void)!::pread(descriptor, &last, 1, info.st_size - 1);
  }
  ::close(descriptor);
  return last != '\n';
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanSink>> OpenSpanFile(const std::string& path) {
  // Without waiting, so that a pipe that nobody reads holds up neither the start nor the end.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (descriptor < 0) {
    return InvalidField("--otlp-file", std::string("must be a file that can be written (") + std::strerror(errno) + ")",
                        path);
  }
  return std::unique_ptr<SpanSink>(new SpanFile(descriptor, EndsWithinALine(path)));
}

}  // namespace penstock
