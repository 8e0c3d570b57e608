// The promise of random_transparency_test where the lanes of a pipeline stand on one to four ranks, placed at random. Of
// every other case the leader and the others say everything in messages.
//
// PENSTOCK_TRANSPARENCY_CASES is the number of cases (200), with the seeds PENSTOCK_TRANSPARENCY_SEED (1) and on.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/group_in_process.h"
#include "tests/support/group_over_messages.h"
#include "tests/transparency/random_case.h"
#include "tests/transparency/side_by_side.h"
#include "tests/transparency/value_layers.h"

namespace penstock::testing {
namespace {

constexpr int kMaxRanks = 4;
constexpr int kMaxFailures = 3;

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::stoull(text);
}

TEST(RankTransparency, ModelsOverSeveralRanksTrainAndInferAsPlainAutograd) {
  at::set_num_threads(1);
  ASSERT_TRUE(RegisterValueLayers().ok());
  std::vector<std::unique_ptr<GroupInProcess>> groups;
  std::vector<std::unique_ptr<GroupInProcess>> over_messages;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    groups.push_back(std::make_unique<GroupInProcess>(ranks, RandomCaseDevices()));
    over_messages.push_back(std::make_unique<GroupOverMessages>(ranks, RandomCaseDevices()));
  }
  const uint64_t first = FromEnvironment("PENSTOCK_TRANSPARENCY_SEED", 1);
  const uint64_t cases = FromEnvironment("PENSTOCK_TRANSPARENCY_CASES", 200);
  int failures = 0;
  int elsewhere = 0;
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const RandomCase one = MakeRandomCase(seed);
    const bool messages = seed / kMaxRanks % 2 == 1;
    SideBySide both(one, *(messages ? over_messages : groups)[seed % kMaxRanks]);
    const Difference difference = both.Run();
    elsewhere += both.stages_elsewhere();
    if (!difference.found()) continue;
    ADD_FAILURE() << difference.text << "\n"
                  << Describe(one) << "\nranks " << seed % kMaxRanks + 1 << (messages ? " over messages" : "");
    if (++failures == kMaxFailures) break;
  }
  EXPECT_GT(elsewhere, cases / 2) << "most cases have stages on other ranks than the leader's";
}

}  // namespace
}  // namespace penstock::testing
