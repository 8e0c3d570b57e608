// The page beside the one that the library's serializer writes.

#include "server/metrics/metrics_text.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/metrics_collector.h"
#include "tests/unit/metrics/sample_metrics.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The same lines in the same order; the numbers at their ends and in bounds may be written in another way.
void ExpectSame(const std::string& ours, const std::string& theirs) {
  const std::vector<std::string> one = LinesOf(ours);
  const std::vector<std::string> other = LinesOf(theirs);
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].starts_with("#")) {
      EXPECT_EQ(one[i], other[i]);
      continue;
    }
    const size_t space = one[i].rfind(' ');
    const size_t space_there = other[i].rfind(' ');
    EXPECT_EQ(one[i].substr(0, space), other[i].substr(0, space_there));
    const double here = std::stod(one[i].substr(space + 1));
    const double there = std::stod(other[i].substr(space_there + 1));
    EXPECT_TRUE(here == there || std::abs(here - there) <= 1e-15 * std::abs(there) ||
                (std::isnan(here) && std::isnan(there)))
        << one[i] << " and " << other[i];
  }
}

TEST(MetricsTextTest, IsWhatTheLibraryWrites) {
  SampleMetrics sample;
  LaneMetrics& lane = sample.pipeline->lane(0);
  for (int64_t nanos = 1; nanos < 100'000'000'000; nanos *= 7) lane.ObservePhase(Phase::kForward, nanos);
  sample.clock.AdvanceNanos(1'234'567'891);
  sample.pipeline->loss.Set(2.0 / 3);
  sample.pipeline->step_number.Set(123'456'789);
  lane.recomputed_bytes.Add(int64_t{1} << 40);
  const auto families = MetricsCollector(&sample.registry).Collect();
  ASSERT_GT(families.size(), 40u);
  ExpectSame(MetricsText(families), prometheus::TextSerializer().Serialize(families));
}

prometheus::MetricFamily GaugeOf(double value, std::string label = "x") {
  prometheus::MetricFamily family{.name = "g", .help = "Help.", .type = prometheus::MetricType::Gauge, .metric = {}};
  family.metric.emplace_back();
  family.metric.back().label = {{"l", std::move(label)}};
  family.metric.back().gauge.value = value;
  return family;
}

TEST(MetricsTextTest, WritesEveryNumberSoThatItReadsBackTheSame) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.0, -0.0, 1.0, -1.0, 0.1, 1e-300, 5e-324, 1e15, 1e15 + 1, -1e15, 999'999'999'999'999.0,
                             1e300, 123'456.789, 1.0 / 3, kInfinity, -kInfinity, 1'732'233'600.123456}) {
    const std::string text = MetricsText({GaugeOf(value)});
    EXPECT_EQ(std::strtod(text.c_str() + text.rfind(' '), nullptr), value) << text;
  }
  EXPECT_THAT(MetricsText({GaugeOf(std::nan(""))}), HasSubstr("g{l=\"x\"} NaN\n"));
  EXPECT_THAT(MetricsText({GaugeOf(kInfinity)}), HasSubstr("g{l=\"x\"} +Inf\n"));
  EXPECT_THAT(MetricsText({GaugeOf(123'456'789)}), HasSubstr("g{l=\"x\"} 123456789\n"));
}

TEST(MetricsTextTest, EscapesAsTheLibraryDoes) {
  for (const std::string label : {"", "\"", "\\", "\n", "a\"b\\c\nd", "\\n", "\xc3\xa4"}) {
    const std::vector<prometheus::MetricFamily> families = {GaugeOf(1, label)};
    ExpectSame(MetricsText(families), prometheus::TextSerializer().Serialize(families));
  }
}

// The library leaves line ends in a help text as they are, which breaks the page.
TEST(MetricsTextTest, AHelpTextStaysOnItsLine) {
  prometheus::MetricFamily family = GaugeOf(1);
  family.help = "a \\ b\nc \"d\"";
  EXPECT_THAT(MetricsText({family}), HasSubstr("# HELP g a \\\\ b\\nc \"d\"\n# TYPE g gauge\n"));
}

}  // namespace
}  // namespace penstock
