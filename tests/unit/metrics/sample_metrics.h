#pragma once

// A registry with one small pipeline, and a reader of the page that a scrape gives.

#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "engine/observe/metrics_registry.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics_page.h"
#include "tests/support/fake_clock.h"

namespace penstock {

// A registry on a fake clock, with a pipeline "gpt" of two lanes that has run nothing, and one method.
struct SampleMetrics {
  SampleMetrics() {
    registry.SetGroup([] {
      GroupFigures figures;
      for (PeerFigures& by_carrier : figures.received) by_carrier.from[Rank(1)] = {};
      return figures;
    });
    pipeline =
        registry.AddPipeline("gpt",
                             {{.lane = 0,
                               .device = "cpu:0",
                               .layers = "0-3",
                               .ideal_bubble = 0.2,
                               .predicted_bubble = 0.25,
                               .links = {{.to = 1, .kind = LinkKind::kActivation}}},
                              {.lane = 1,
                               .device = "cpu:1",
                               .layers = "4-7",
                               .ideal_bubble = 0.2,
                               .predicted_bubble = 0.25,
                               .links = {{.to = 0, .kind = LinkKind::kGradient}}}},
                             {.kind = "1f1b", .stages = 2, .micro_batches = 4, .checkpoint_mode = "except_last"});
    registry.server().AddMethod("unary", "penstock.v1.WorkService", "TrainStep");
    registry.server().SetDevices(
        {{.name = "cpu:0", .memory_limit_bytes = 1 << 20},
         {.name = "cuda:0",
          .memory_limit_bytes = 800,
          .allocator =
              [] {
                return AllocatorBytes{40, 24};
              }},
         {.name = "cuda:1", .memory_limit_bytes = 800, .allocator = [] { return std::nullopt; }}});
    registry.server().SetBuild({.version = "0.1.0", .commit = "abc", .cuda = "", .torch = "2.11.0"});
    registry.server().certificate_end.Set(1.8e9);
  }

  testing::FakeClock clock;
  MetricsRegistry registry{&clock};
  std::shared_ptr<PipelineMetrics> pipeline;
};

// The samples of a page: "name{labels}" to value. Fails the test on a sample that stands twice.
inline std::map<std::string, double> SamplesOf(const std::string& page) {
  std::map<std::string, double> samples;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << line;
  }
  return samples;
}

}  // namespace penstock
