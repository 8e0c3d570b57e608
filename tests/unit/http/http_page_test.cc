#include "server/http/http_page.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock {
namespace {

HttpPages Pages() {
  return {.metrics_content_type = "text/metrics",
          .metrics = [] { return std::string("a 1\n"); },
          .healthy = [] { return std::vector<HealthCondition>{}; },
          .ready =
              [] {
                return std::vector<HealthCondition>{{"config", true, "read"}, {"model", false, "loading\nlayer 3"}};
              }};
}

TEST(HttpPageTest, ServesThreePathsAndNothingElse) {
  EXPECT_EQ(Respond(Pages(), {"GET", "/metrics", ""}).body, "a 1\n");
  EXPECT_EQ(Respond(Pages(), {"GET", "/metrics", ""}).content_type, "text/metrics");
  EXPECT_EQ(Respond(Pages(), {"GET", "/healthz", ""}).status, 200);
  EXPECT_EQ(Respond(Pages(), {"GET", "/readyz", ""}).status, 503);
  for (std::string_view path : {"", "/", "/metrics/", "/metricsx", "/Metrics", "/readyz/model", "*", "/../metrics"}) {
    EXPECT_EQ(Respond(Pages(), {"GET", path, ""}).status, 404) << path;
  }
}

TEST(HttpPageTest, AllowsGetAndHeadOnly) {
  EXPECT_EQ(Respond(Pages(), {"HEAD", "/metrics", ""}).status, 200);
  for (std::string_view method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", ""}) {
    EXPECT_EQ(Respond(Pages(), {method, "/metrics", ""}).status, 405) << method;
  }
}

TEST(HttpPageTest, AConditionThatDoesNotHoldIsNamed) {
  const HttpResponse response = Respond(Pages(), {"GET", "/readyz", ""});
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.body, "config ok\nmodel not ok\n");
}

TEST(HttpPageTest, VerboseAddsDetailsOnTheSameLine) {
  const std::string expected = "config ok: read\nmodel not ok: loading layer 3\n";
  for (std::string_view query : {"verbose", "verbose=1", "x=1&verbose", "verbose&x"}) {
    EXPECT_EQ(Respond(Pages(), {"GET", "/readyz", query}).body, expected) << query;
  }
  for (std::string_view query : {"", "verbos", "xverbose", "&&", "verbosely=1"}) {
    EXPECT_EQ(Respond(Pages(), {"GET", "/readyz", query}).body, "config ok\nmodel not ok\n") << query;
  }
}

TEST(HttpPageTest, HealthWithoutConditionsIsOk) {
  EXPECT_EQ(HealthPage({}, true).status, 200);
  EXPECT_EQ(HealthPage({}, true).body, "ok\n");
  EXPECT_EQ(HealthPage({{"a", true, ""}, {"b", true, ""}}, false).status, 200);
}

}  // namespace
}  // namespace penstock
