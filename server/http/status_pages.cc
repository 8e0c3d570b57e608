#include "server/http/status_pages.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http/trace_download.h"

namespace penstock {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'";

struct Route {
  const char* path;
  const char* title;
  Document (*page)(const StatusSources&);
  // Null: each process has it.
  bool (*there)(const StatusSources&) = nullptr;

  bool In(const StatusSources& sources) const { return there == nullptr || there(sources); }
};

bool ServesCallers(const StatusSources& sources) { return sources.handles != nullptr; }
bool HasMemory(const StatusSources& sources) { return sources.memory != nullptr; }
bool HasCheckpoints(const StatusSources& sources) { return sources.checkpoints != nullptr; }

constexpr Route kRoutes[] = {
    {"/", "Overview", &IndexPage},
    {"/statusz", "Status", &StatusPage},
    {"/queuez", "Queues", &QueuePage, &ServesCallers},
    {"/handlez", "Handles", &HandlePage, &ServesCallers},
    {"/memory", "Memory", &MemoryPage, &HasMemory},
    {"/checkpointz", "Checkpoints", &CheckpointPage, &HasCheckpoints},
    {"/tracez", "Traces", &TracePage},
    {"/logz", "Log", &LogPage},
    {"/flagz", "Settings", &FlagPage},
};

std::vector<NavigationLink> Navigation(const StatusSources& sources) {
  std::vector<NavigationLink> links;
  for (const Route& route : kRoutes) {
    if (route.In(sources)) links.push_back({route.path, route.title});
  }
  return links;
}

HttpResponse Asset(std::string_view type, std::string body) {
  HttpResponse response;
  response.content_type = std::string(type);
  response.body = std::move(body);
  return response;
}

enum class Format { kHtml, kText, kJson, kUnknown };

Format FormatOf(const HttpRequest& request) {
  const std::string asked = QueryValue(request.query, "format");
  if (asked == "html") return Format::kHtml;
  if (asked == "text") return Format::kText;
  if (asked == "json") return Format::kJson;
  if (!asked.empty()) return Format::kUnknown;
  const bool browser = request.accept.find("text/html") != std::string_view::npos;
  return browser ? Format::kHtml : Format::kText;
}

HttpResponse Draw(const StatusSources& sources, const Document& document, const HttpRequest& request) {
  HttpResponse response;
  switch (FormatOf(request)) {
    case Format::kHtml:
      response.content_type = "text/html; charset=utf-8";
      response.body = ToHtml(document, Navigation(sources), request.path);
      break;
    case Format::kJson:
      response.content_type = "application/json";
      response.body = ToJson(document);
      break;
    case Format::kText:
      response.body = ToText(document);
      break;
    case Format::kUnknown:
      return PlainAnswer(400, "format: must be html, text or json");
  }
  return response;
}

HttpResponse Find(const StatusSources& sources, const HttpRequest& request) {
  if (request.path == "/style.css") return Asset("text/css; charset=utf-8", StyleSheet());
  if (request.path == "/refresh.js") return Asset("text/javascript; charset=utf-8", std::string(RefreshScript()));
  if (request.path == "/icon.svg") return Asset("image/svg+xml", std::string(Icon()));
  if (request.path == "/tracez/download") return TraceDownload(sources, request);
  if (request.path == "/pipeline") {
    const auto pipelines = sources.registry->Snapshot();
    std::string name = QueryValue(request.query, "name");
    if (name.empty() && pipelines.size() == 1) name = pipelines.front()->name();
    if (name.empty()) return Draw(sources, IndexPage(sources), request);
    const auto found = sources.registry->Find(name);
    if (found == nullptr) return PlainAnswer(404, "name: there is no such pipeline; the page / lists all");
    return Draw(sources, PipelinePage(sources, *found), request);
  }
  const std::string_view path = request.path == "/memz" ? "/memory" : request.path;
  for (const Route& route : kRoutes) {
    if (path == route.path && route.In(sources)) return Draw(sources, route.page(sources), request);
  }
  return Respond(sources.probes, request);
}

}  // namespace

bool IsHostAllowed(std::string_view host) {
  std::string name(host);
  if (!name.empty() && name.front() == '[') {
    const size_t end = name.find(']');
    if (end == std::string::npos) return false;
    const std::string port = name.substr(end + 1);
    in6_addr parsed;
    return (port.empty() || port.front() == ':') &&
           ::inet_pton(AF_INET6, name.substr(1, end - 1).c_str(), &parsed) == 1;
  }
  int port = 0;
  if (const size_t colon = name.find(':'); colon != std::string::npos) {
    if (!absl::SimpleAtoi(name.substr(colon + 1), &port)) return false;
    name.resize(colon);
  }
  in_addr parsed;
  return absl::AsciiStrToLower(name) == "localhost" || ::inet_pton(AF_INET, name.c_str(), &parsed) == 1;
}

HttpResponse RespondStatus(const StatusSources& sources, const HttpRequest& request) {
  HttpResponse response;
  if (!IsHostAllowed(request.host)) {
    response = PlainAnswer(403, "Host: must be localhost or an IP address");
  } else if (request.method == "POST" && request.path == "/logz") {
    response = ChangeLogLevel(request);
  } else if (request.method != "GET" && request.method != "HEAD") {
    response = MethodNotAllowed(request.path == "/logz" ? "GET, HEAD, POST" : "GET, HEAD");
  } else {
    response = Find(sources, request);
  }
  response.headers.insert(response.headers.end(), {{"Content-Security-Policy", std::string(kPolicy)},
                                                   {"X-Content-Type-Options", "nosniff"},
                                                   {"X-Frame-Options", "DENY"},
                                                   {"Referrer-Policy", "no-referrer"},
                                                   {"Cross-Origin-Resource-Policy", "same-origin"},
                                                   {"Vary", "Accept"}});
  return response;
}

}  // namespace penstock
