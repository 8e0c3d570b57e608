#include "server/http/http_page.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/log.h"

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
    case 500:
      return "Internal Server Error";
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

HttpResponse HealthJson(std::string_view service, const std::vector<HealthCondition>& conditions) {
  HttpResponse response;
  response.content_type = "application/json";
  std::string list;
  for (const HealthCondition& condition : conditions) {
    if (!condition.holds) response.status = 503;
    absl::StrAppend(&list, list.empty() ? "" : ", ", "{\"name\": \"", JsonEscape(condition.name),
                    "\", \"holds\": ", condition.holds ? "true" : "false");
    absl::StrAppend(&list, ", \"detail\": \"", JsonEscape(condition.detail), "\"}");
  }
  absl::StrAppend(&response.body, "{\"service\": \"", std::string(service), "\", \"status\": \"",
                  response.status == 200 ? "serving" : "not_serving", "\", \"conditions\": [", list, "]}\n");
  return response;
}

HttpResponse PlainAnswer(int status, std::string line) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(line) + "\n";
  return response;
}

HttpResponse MethodNotAllowed(std::string allowed) {
  HttpResponse response = Plain(405);
  response.headers = {{"Allow", std::move(allowed)}};
  return response;
}

std::string QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(part.size() + 1, query.size()));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || part.substr(0, equals) != name) continue;
    std::string value;
    for (size_t i = equals + 1; i < part.size(); ++i) {
      unsigned code = 0;
      const std::string hex(part.substr(i + 1, 2));
      if (part[i] == '%' && hex.size() == 2 && absl::SimpleHexAtoi(hex, &code)) {
        value += static_cast<char>(code);
        i += 2;
      } else {
        value += part[i] == '+' ? ' ' : part[i];
      }
    }
    return value;
  }
  return "";
}

HttpResponse Respond(const HttpPages& pages, const HttpRequest& request) {
  const bool known = request.path == "/metrics" || request.path == "/healthz" || request.path == "/readyz";
  if (!known) return Plain(404);
  if (request.method != "GET" && request.method != "HEAD") return MethodNotAllowed();
  if (request.path == "/metrics") {
    HttpResponse response;
    response.content_type = pages.metrics_content_type;
    response.body = pages.metrics();
    return response;
  }
  const bool alive = request.path == "/healthz";
  const std::vector<HealthCondition> conditions = alive ? pages.healthy() : pages.ready();
  if (QueryValue(request.query, "format") == "json") return HealthJson(alive ? "liveness" : "readiness", conditions);
  return HealthPage(conditions, AsksForVerbose(request.query));
}

}  // namespace penstock
