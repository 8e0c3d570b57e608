// The page, judged by Prometheus' own tool.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/unit/metrics/sample_metrics.h"

namespace penstock {
namespace {

TEST(PromtoolTest, FindsNothingToSayAboutThePage) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (Debian package prometheus)";
  }
  SampleMetrics sample;
  sample.pipeline->lane(0).ObservePhase(Phase::kForward, 3'000'000);
  sample.pipeline->BatchStarted(BatchMode::kTrain);
  sample.pipeline->loss.Set(2.5);
  const std::string page_path = ::testing::TempDir() + "/penstock_metrics_page.txt";
  const std::string said_path = ::testing::TempDir() + "/penstock_promtool_said.txt";
  std::ofstream(page_path) << MetricsPage(sample.registry);
  const int status = std::system(("promtool check metrics < '" + page_path + "' > '" + said_path + "' 2>&1").c_str());
  std::ifstream file(said_path);
  std::stringstream said;
  said << file.rdbuf();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(said.str(), "");
  std::remove(page_path.c_str());
  std::remove(said_path.c_str());
}

}  // namespace
}  // namespace penstock
