#pragma once

// Checks whether a request may change something through a page.

#include "absl/status/status.h"
#include "server/http/http_page.h"

namespace penstock {

// Lets a POST through that no web site can have sent: it carries the header X-Penstock-Change, which a browser sends to
// another site only after asking that site, and nothing here ever agrees; and Origin and Sec-Fetch-Site, where a
// browser gives them, name this very listener.
//
// Fails: PERMISSION_DENIED that names the header.
absl::Status CheckChange(const HttpRequest& request);

}  // namespace penstock
