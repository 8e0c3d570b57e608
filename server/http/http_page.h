#pragma once

// What the listener answers, apart from how bytes reach the socket: pure functions of a request.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

// Something that must hold for the daemon to be healthy or ready.
struct HealthCondition {
  std::string name;  // "model"
  bool holds = false;
  std::string detail;  // for people: why not, or how; may be empty
};

// Where the pages come from. Each closure may be called from several threads at once and must not block for long.
struct HttpPages {
  std::string metrics_content_type;
  std::function<std::string()> metrics;                   // /metrics
  std::function<std::vector<HealthCondition>()> healthy;  // /healthz
  std::function<std::vector<HealthCondition>()> ready;    // /readyz
};

struct HttpRequest {
  std::string_view method;
  std::string_view path;
  std::string_view query;      // without the question mark
  std::string_view host = {};  // the headers of these names; empty without
  std::string_view accept = {};
  // Of a POST: the headers that say who asks for a change, and from which site.
  std::string_view origin = {};
  std::string_view fetch_site = {};  // Sec-Fetch-Site
  std::string_view change = {};      // X-Penstock-Change
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // further ones
  // Set for a body that is made while it is sent: the next piece, nothing at the end. Then `body` stays empty.
  std::function<std::optional<std::string>()> next = {};
};

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

// Answers a request: 404 for an unknown path, 405 for a method other than GET and HEAD. The body of a HEAD answer is
// the one of GET; the sender leaves it away.
HttpResponse Respond(const HttpPages& pages, const HttpRequest& request);

// A line of text, for people who asked for something else.
HttpResponse PlainAnswer(int status, std::string line);

// 405, with what is allowed: "GET, HEAD".
HttpResponse MethodNotAllowed(std::string allowed = "GET, HEAD");

// 200 if all conditions hold, otherwise 503. One line per condition, "NAME ok" or "NAME not ok"; if verbose, with
// details.
HttpResponse HealthPage(const std::vector<HealthCondition>& conditions, bool verbose);

// The same for programs, as `penstock health -o json` tells it, and with the conditions.
HttpResponse HealthJson(std::string_view service, const std::vector<HealthCondition>& conditions);

// The value of a parameter of a query, decoded; empty if it is not there.
std::string QueryValue(std::string_view query, std::string_view name);

// "Not Found" for 404.
std::string_view StatusText(int status);

}  // namespace penstock
