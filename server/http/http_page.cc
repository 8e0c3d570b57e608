#include "server/http/http_page.h"

#include <algorithm>

namespace penstock {
namespace {

// True for "verbose", "verbose=1" and the like among the parts of a query.
bool AsksForVerbose(std::string_view query) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    if (part.substr(0, part.find('=')) == "verbose") return true;
    query.remove_prefix(std::min(part.size() + 1, query.size()));
  }
  return false;
}

HttpResponse Plain(int status) {
  HttpResponse response;
  response.status = status;
  response.body = std::string(StatusText(status)) + "\n";
  return response;
}

// Keeps a detail on its line.
std::string OneLine(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text;
}

}  // namespace

std::string_view StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

HttpResponse HealthPage(const std::vector<HealthCondition>& conditions, bool verbose) {
  HttpResponse response;
  for (const HealthCondition& condition : conditions) {
    if (!condition.holds) response.status = 503;
    response.body += condition.name + (condition.holds ? " ok" : " not ok");
    if (verbose && !condition.detail.empty()) response.body += ": " + OneLine(condition.detail);
    response.body += "\n";
  }
  if (conditions.empty()) response.body = "ok\n";
  return response;
}

HttpResponse Respond(const HttpPages& pages, const HttpRequest& request) {
  const bool known = request.path == "/metrics" || request.path == "/healthz" || request.path == "/readyz";
  if (!known) return Plain(404);
  if (request.method != "GET" && request.method != "HEAD") return Plain(405);
  if (request.path == "/metrics") {
    HttpResponse response;
    response.content_type = pages.metrics_content_type;
    response.body = pages.metrics();
    return response;
  }
  return HealthPage(request.path == "/healthz" ? pages.healthy() : pages.ready(), AsksForVerbose(request.query));
}

}  // namespace penstock
