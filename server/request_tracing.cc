#include "server/request_tracing.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "server/tracing/span_sink.h"

namespace penstock {
namespace {

constexpr absl::Duration kCollectorTimeout = absl::Seconds(5);

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

absl::Status CheckTracing(const DaemonOptions& options) {
  if (options.otlp_endpoint.empty()) return absl::OkStatus();
  return ParseCollectorAddress(options.otlp_endpoint, "--otlp-endpoint").status();
}

absl::StatusOr<std::unique_ptr<RequestTracing>> RequestTracing::Create(const DaemonOptions& options, Epoch epoch,
                                                                       Clock* clock) {
  const SpanAttributes resource = {{"service.name", std::string("penstock")},
                                   {"service.version", std::string(PENSTOCK_VERSION)},
                                   {"service.instance.id", absl::StrCat(HostName(), "-", epoch.value())},
                                   {"host.name", HostName()}};
  auto exporters = std::make_shared<Exporters>();
  const auto add = [&](std::unique_ptr<SpanSink> sink, SpanTarget target, const std::string& place) {
    exporters->push_back(std::make_unique<SpanExporter>(
        std::move(sink), SpanExporter::Options{.target = place, .resource = resource, .version = PENSTOCK_VERSION},
        &SpansOf(target), clock));
    LogInfo("spans of calls are written", {{"target", place}});
  };
  if (!options.otlp_file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<SpanSink> file, OpenSpanFile(options.otlp_file));
    add(std::move(file), SpanTarget::kFile, options.otlp_file);
  }
  if (!options.otlp_endpoint.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(CollectorAddress address,
                              ParseCollectorAddress(options.otlp_endpoint, "--otlp-endpoint"));
    add(MakeCollectorSink(std::move(address), clock, absl::ToInt64Nanoseconds(kCollectorTimeout)),
        SpanTarget::kCollector, options.otlp_endpoint);
  }
  Tracer::Options tracing{.exports = !exporters->empty(), .sample_ratio = options.trace_sample_ratio};
  tracing.send = [exporters](Span span) {
    for (size_t i = 1; i < exporters->size(); ++i) (*exporters)[i]->Add(span);
    if (!exporters->empty()) exporters->front()->Add(std::move(span));
  };
  return std::unique_ptr<RequestTracing>(new RequestTracing(std::move(exporters), std::move(tracing), clock));
}

void RequestTracing::Close() {
  for (const auto& exporter : *exporters_) exporter->Close();
}

}  // namespace penstock
