#include "server/metrics/metric_names.h"

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/metrics/metrics_page.h"

namespace penstock {
namespace {

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Dashboards and alerts of others depend on names, types, labels and buckets: PENSTOCK_REWRITE_GOLDEN=1 rewrites the
// file, and its diff is to be read.
TEST(MetricTableTest, EqualsTheTableThatPeopleHaveRead) {
  const std::string path = std::string(PENSTOCK_GOLDEN_FOLDER) + "/metric_table.json";
  if (std::getenv("PENSTOCK_REWRITE_GOLDEN") != nullptr) std::ofstream(path) << MetricTableJson();
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << "metric_table.json is missing; PENSTOCK_REWRITE_GOLDEN=1 writes it";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(MetricTableJson(), golden.str());
}

TEST(MetricTableTest, PrintsAsJson) {
  const nlohmann::json table = nlohmann::json::parse(MetricTableJson());
  ASSERT_EQ(table.size(), MetricTable().size());
  EXPECT_EQ(table[0]["name"], "penstock_stage_time_seconds_total");
  EXPECT_EQ(table[0]["type"], "counter");
  EXPECT_EQ(table[0]["labels"][3]["name"], "state");
  EXPECT_EQ(table[0]["labels"][3]["values"].size(), 24u);
  EXPECT_EQ(table[2]["buckets"][0], 0.0001);
  EXPECT_EQ(table[2]["buckets"].back(), 10);
}

TEST(MetricTableTest, NamesFollowTheRules) {
  const std::regex name_rule("(penstock|grpc_server|process)_[a-z][a-z0-9_]*");
  const std::regex label_rule("[a-z][a-z_]*");
  std::set<std::string_view> names;
  for (const MetricInfo& info : MetricTable()) {
    SCOPED_TRACE(info.name);
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_TRUE(std::regex_match(std::string(info.name), name_rule));
    EXPECT_EQ(EndsWith(info.name, "_total"), info.type == MetricType::kCounter);
    EXPECT_FALSE(info.help.empty());
    EXPECT_EQ(info.help.back(), '.');
    EXPECT_EQ(info.buckets.empty(), info.type != MetricType::kHistogram);
    if (info.type == MetricType::kHistogram) {
      EXPECT_TRUE(EndsWith(info.name, "_seconds"));
    }
    std::set<std::string_view> labels;
    for (const MetricLabel& label : info.labels) {
      EXPECT_TRUE(std::regex_match(std::string(label.name), label_rule)) << label.name;
      EXPECT_TRUE(labels.insert(label.name).second) << label.name;
      // Ids, steps and text of clients would make series without bound.
      for (std::string_view unbounded :
           {"handle", "request_id", "step", "micro_batch", "peer_address", "error", "le"}) {
        EXPECT_NE(label.name, unbounded);
      }
    }
  }
}

}  // namespace
}  // namespace penstock
