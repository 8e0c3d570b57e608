#include "server/http/change_request.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace penstock {
namespace {

absl::Status Denied(std::string_view header, std::string_view problem) {
  return absl::PermissionDeniedError(absl::StrCat(std::string(header), ": ", std::string(problem)));
}

}  // namespace

absl::Status CheckChange(const HttpRequest& request) {
  if (request.change.empty()) return Denied("X-Penstock-Change", "must be given, with any value");
  if (!request.origin.empty() && request.origin != absl::StrCat("http://", std::string(request.host))) {
    return Denied("Origin", "must be that of this page");
  }
  if (!request.fetch_site.empty() && request.fetch_site != "same-origin" && request.fetch_site != "none") {
    return Denied("Sec-Fetch-Site", "must be same-origin or none");
  }
  return absl::OkStatus();
}

}  // namespace penstock
