// Exported programs under every schedule, cut into up to four lanes and eight stages, at modules and at any operator:
// losses, gradient norms and every saved tensor equal those of the plain loop over the uncut program, bit for bit.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/schedule/generators.h"
#include "tests/unit/program/pipeline_examples.h"

namespace penstock::testing {
namespace {

constexpr int kMicroBatches = 8;  // what dualpipe-v needs on four lanes
constexpr int kSteps = 2;
constexpr CheckpointMode kModes[] = {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever,
                                     CheckpointMode::kSkipAdjacent};

// What a plain loop makes of an example.
struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  NamedTensors saved;
};

Trained TrainPlainly(const ProgramExample& example, const PipelineSpec& spec) {
  PlainReference plain = PlainOfProgram(spec);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const PlainReference::StepResult result = plain.TrainStep(example.Values(), example.target, kMicroBatches);
    trained.losses.push_back(result.loss);
    trained.norms.push_back(result.gradient_norm);
  }
  trained.saved = plain.SavedTensors();
  return trained;
}

void ExpectTrainsAs(const ProgramExample& example, const PipelineSpec& spec, const Trained& expected,
                    DevicePool& pool) {
  const auto pipeline = MakeProgramPipeline(spec, pool);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  for (int step = 0; step < kSteps; ++step) {
    ContributionRequest request;
    request.inputs = NamedTensors(example.inputs);
    request.target = example.target;
    const auto outcome = (*pipeline)->TrainStep(request, {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_EQ(outcome->loss, expected.losses[step]) << "step " << step;
    ASSERT_EQ(outcome->gradient_norm, expected.norms[step]) << "step " << step;
  }
  const NamedTensors state = (*pipeline)->ExportState(false).value();
  ASSERT_EQ(state.size(), expected.saved.size());
  for (const NamedTensor& wanted : expected.saved) {
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const NamedTensor& one) { return one.name == wanted.name; });
    ASSERT_NE(found, state.end()) << wanted.name;
    EXPECT_TRUE(at::equal(found->tensor, wanted.tensor)) << wanted.name;
  }
}

// Of so many layers, stages of any size but none.
std::vector<int> AnyBalance(int layers, int stages, std::mt19937& random) {
  std::vector<int> places(static_cast<size_t>(layers) - 1);
  std::iota(places.begin(), places.end(), 1);
  std::shuffle(places.begin(), places.end(), random);
  places.resize(static_cast<size_t>(stages) - 1);
  std::sort(places.begin(), places.end());
  std::vector<int> balance;
  int before = 0;
  places.push_back(layers);
  for (const int place : places) {
    balance.push_back(place - before);
    before = place;
  }
  return balance;
}

// One of the tests' cases.
struct Case {
  const ProgramExample& example;
  const ScheduleKind& kind;
  int lanes = 2;
  CheckpointMode mode = CheckpointMode::kNever;
  ProgramCuts cuts = ProgramCuts::kModules;
};

class ProgramSchedules {
 public:
  ProgramSchedules() {
    at::set_num_threads(1);
    for (int d = 0; d < 4; ++d) devices_.push_back({absl::StrCat("cpu:", d), {d % 2}, 0});
  }

  void Run(const Case& one) {
    const int stages = one.lanes * one.kind.usual_chunks;
    ScheduleSpec schedule = {std::string(one.kind.name), kMicroBatches, one.mode, one.kind.usual_chunks};
    if (schedule.kind == "lag") schedule.lag = one.lanes;
    PipelineSpec spec = ProgramSpec(one.example, stages, schedule, one.cuts);
    if (spec.model.loaded_program->size() < stages) return;
    if (one.cuts == ProgramCuts::kNodes) {
      spec.cut.balance = AnyBalance(spec.model.loaded_program->size(), stages, random_);
    }
    SCOPED_TRACE(absl::StrCat(one.example.program, ", ", schedule.kind, ", ", one.lanes, " lanes, mode ",
                              static_cast<int>(one.mode), ", balance ", absl::StrJoin(spec.cut.balance, " ")));
    std::optional<Trained>& expected = expected_[{one.example.program, one.cuts}];
    if (!expected.has_value()) expected = TrainPlainly(one.example, spec);
    DevicePool pool({devices_.begin(), devices_.begin() + one.lanes}, DevicePool::Mode::kSerial);
    ExpectTrainsAs(one.example, spec, *expected, pool);
    ++cases_;
  }

  int cases() const { return cases_; }

 private:
  std::vector<Device> devices_;
  std::mt19937 random_{20261121};
  std::map<std::pair<std::string, ProgramCuts>, std::optional<Trained>> expected_;
  int cases_ = 0;
};

// Checkpoint modes and kinds of cuts take turns; with PENSTOCK_PROGRAM_SCHEDULES=all, every one of them everywhere.
TEST(ProgramSchedule, EqualsThePlainLoopUnderEveryKind) {
  const char* const wanted = std::getenv("PENSTOCK_PROGRAM_SCHEDULES");
  const bool all = wanted != nullptr && std::string(wanted) == "all";
  ProgramSchedules schedules;
  int turn = 0;
  for (const ProgramExample& example : ProgramExamples(kMicroBatches)) {
    for (const ScheduleKind& kind : ScheduleKinds()) {
      if (!kind.trains) continue;
      for (const int lanes : {2, 3, 4}) {
        ++turn;
        for (size_t mode = 0; mode < std::size(kModes); ++mode) {
          for (const ProgramCuts cuts : {ProgramCuts::kModules, ProgramCuts::kNodes}) {
            const bool nodes = cuts == ProgramCuts::kNodes;
            if (!all && (mode != static_cast<size_t>(turn % 4) || nodes != (turn / 4 % 2 == 0))) continue;
            schedules.Run({example, kind, lanes, kModes[mode], cuts});
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
  if (!all) {
    EXPECT_EQ(schedules.cases(), 228);
  }
}

}  // namespace
}  // namespace penstock::testing
