#include "server/http/trace_download.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_export.h"

namespace penstock {
namespace {

// A name as it may stand in a header: pipelines are called so anyway, but it is the page that must be sure.
std::string FileName(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !absl::ascii_isalnum(c) && c != '-'; }, '_');
  return name;
}

}  // namespace

HttpResponse TraceDownload(const StatusSources& sources, const HttpRequest& request) {
  const std::string format = QueryValue(request.query, "format");
  const bool perfetto = format == "perfetto";
  if (!perfetto && !format.empty() && format != "chrome") {
    return PlainAnswer(400, "format: must be chrome or perfetto");
  }
  std::string name = QueryValue(request.query, "name");
  if (const auto pipelines = sources.registry->Snapshot(); name.empty() && pipelines.size() == 1) {
    name = pipelines.front()->name();
  }
  const std::shared_ptr<const PipelineMetrics> metrics = sources.registry->Find(name);
  if (metrics == nullptr || !metrics->KeepsTraces())
    return PlainAnswer(404, "name: there is no such pipeline, or it keeps no traces");

  HttpResponse response;
  response.content_type = perfetto ? "application/octet-stream" : "application/json";
  response.headers = {
      {"Content-Disposition", "attachment; filename=\"" + FileName(name) + (perfetto ? ".pftrace\"" : ".json\"")}};
  if (request.method == "HEAD") {
    response.next = [] { return std::optional<std::string>(); };  // the same headers, without a copy of the rings
    return response;
  }
  auto capture = std::make_shared<const TraceCapture>(
      TraceRecorder(metrics, TraceRecorder::From::kOldest, sources.registry->self()).Finish());
  auto file =
      std::make_shared<TraceExport>(std::move(capture), perfetto ? TraceFormat::kPerfetto : TraceFormat::kChrome);
  response.next = [file] { return file->Next(); };
  return response;
}

}  // namespace penstock
