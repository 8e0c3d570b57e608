#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"
#include "server/tracing/span_sink.h"

namespace penstock {
namespace {

class SpanFile final : public SpanSink {
 public:
  explicit SpanFile(int descriptor) : descriptor_(descriptor) {}
  ~SpanFile() override { ::close(descriptor_); }

  absl::Status Send(std::string_view json, const std::atomic<int64_t>&) override {
    std::string line(json);
    line += '\n';
    size_t done = 0;
    while (done < line.size()) {
      const ssize_t wrote = ::write(descriptor_, line.data() + done, line.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        const std::string problem = std::strerror(errno);
        // A line that was begun is ended, so that the next one can be read.
        if (done > 0) (void)!::write(descriptor_, "\n", 1);
        return absl::UnavailableError(problem);
      }
      done += static_cast<size_t>(wrote);
    }
    return absl::OkStatus();
  }

 private:
  const int descriptor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SpanSink>> OpenSpanFile(const std::string& path) {
  // Without waiting, so that a pipe that nobody reads holds up neither the start nor the end.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (descriptor < 0) {
    return InvalidField("--otlp-file", std::string("must be a file that can be written (") + std::strerror(errno) + ")",
                        path);
  }
  return std::unique_ptr<SpanSink>(new SpanFile(descriptor));
}

}  // namespace penstock
