#pragma once

// Where the time of a training run went.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/message_json.h"
#include "penstock/v1/admin.pb.h"
#include "penstock/v1/insight.pb.h"

namespace penstock {

// One lane between two looks at it.
struct LaneTime {
  int lane = 0;
  std::string device;
  std::vector<std::string> layers;
  std::vector<std::pair<std::string, double>> seconds;  // by state, in the order of the states' table; zeros left out
  double total = 0;
};

// What a run did.
//
// Units:     seconds; losses in nats per element; bubbles as shares.
struct TrainingReport {
  int64_t steps = 0;
  int64_t rows = 0;         // of each step
  int64_t not_applied = 0;  // steps with a loss or gradient that is not finite
  double loss_first = 0;
  double loss_last = 0;
  double seconds = 0;       // from the first submission to the last outcome
  double wall_seconds = 0;  // between the two looks at the lanes
  double bubble_measured = 0;
  double bubble_predicted = 0;
  double bubble_ideal = 0;
  int64_t handles_created = 0;
  int64_t handles_live = 0;
  std::vector<LaneTime> lanes;
  std::map<std::string, std::string> versions;
  std::string api_address;
  std::string metrics_address;

  double SamplesPerSecond() const { return seconds > 0 ? static_cast<double>(steps * rows) / seconds : 0; }
};

// Fills in what the difference of two statistics says: lanes, bubbles, handles, wall time.
void CompareStatistics(const v1::PipelineStatistics& before, const v1::PipelineStatistics& after,
                       TrainingReport* report);

// The document of --json.
Json ReportJson(const TrainingReport& report);

// For people: a table of states by lanes, and the figures below it.
std::string ReportText(const TrainingReport& report);

}  // namespace penstock
