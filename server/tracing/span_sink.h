#pragma once

// Where batches of spans go: a file, a collector.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"

namespace penstock {

// Takes one batch after another.
//
// Threads:   one at a time: that of its exporter. `give_up_nanos` may come nearer while Send() waits.
// Units:     monotonic nanoseconds of the exporter's clock.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  // Delivers one batch, or says why it could not, soon after `give_up_nanos` at the latest.
  virtual absl::Status Send(std::string_view json, const std::atomic<int64_t>& give_up_nanos) = 0;
};

// Appends each batch as one line to a file, which is made if it is not there, for its owner alone.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming --otlp-file and the path.
absl::StatusOr<std::unique_ptr<SpanSink>> OpenSpanFile(const std::string& path);

// Where a collector listens.
struct CollectorAddress {
  std::string host;
  int port = 0;
  std::string path;
};

// Reads http://HOST[:PORT][/PATH]; the port 4318 and the path /v1/traces where there are none. An IPv6 address stands
// in brackets.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming `field` and the text; for https too.
absl::StatusOr<CollectorAddress> ParseCollectorAddress(std::string_view text, std::string_view field);

// Posts each batch to a collector, over a connection of its own.
//
// Model:     connect, write, read the status; each waits at most until the same deadline, `timeout` after the begin.
// Fails:     Send(): UNAVAILABLE with what went wrong; a status other than 2xx is in the message. Nothing is sent
//            twice. Only looking up the name of a host can't be cut short.
std::unique_ptr<SpanSink> MakeCollectorSink(CollectorAddress address, Clock* clock, int64_t timeout_nanos);

}  // namespace penstock
