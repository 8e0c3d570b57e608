#pragma once

// Spans of calls as the settings ask for them: one tracer, and an exporter per place to which they go.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "server/daemon_options.h"
#include "server/tracing/span_exporter.h"
#include "server/tracing/tracer.h"

namespace penstock {

// Checks what can be checked without opening anything.
absl::Status CheckTracing(const DaemonOptions& options);

// Owns what request tracing needs.
//
// Model:     without --otlp-file and --otlp-endpoint calls get ids only if their callers send some, and there are no
//            spans. Each place has its own queue and thread: a collector that hangs takes nothing from the file.
// Threads:   tracer() from any; Close() from one.
// Lifecycle: Close() when no call is left: it sends what is queued, for some seconds at most. The clock outlives it.
class RequestTracing {
 public:
  // Fails:   INVALID_ARGUMENT / FIELD_INVALID naming the flag: a file that can't be opened, an address that can't be
  //          read.
  static absl::StatusOr<std::unique_ptr<RequestTracing>> Create(const DaemonOptions& options, Epoch epoch,
                                                                Clock* clock);

  const Tracer& tracer() const { return tracer_; }
  void Close();

 private:
  using Exporters = std::vector<std::unique_ptr<SpanExporter>>;
  RequestTracing(std::shared_ptr<Exporters> exporters, Tracer::Options options, Clock* clock)
      : exporters_(std::move(exporters)), tracer_(std::move(options), clock) {}

  const std::shared_ptr<Exporters> exporters_;  // shared with every trace under way
  const Tracer tracer_;
};

}  // namespace penstock
