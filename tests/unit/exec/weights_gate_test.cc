#include "engine/exec/weights_gate.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

TEST(WeightsGate, LetsInferenceInAtOnceWithoutAWriter) {
  WeightsGate gate;
  int started = 0;
  gate.Enter([&] { ++started; });
  gate.Enter([&] { ++started; });
  EXPECT_EQ(started, 2);
  gate.Leave();
  gate.Leave();
}

TEST(WeightsGate, GrantsTheWriterWhenTheLastInferenceLeaves) {
  WeightsGate gate;
  std::string log;
  gate.Enter([&] { log += "a"; });
  gate.Enter([&] { log += "b"; });
  gate.RequestExclusive([&] { log += "W"; });
  gate.Leave();
  EXPECT_EQ(log, "ab");
  gate.Leave();
  EXPECT_EQ(log, "abW");
  gate.ReleaseExclusive();
}

TEST(WeightsGate, HoldsNewInferenceBackUntilTheWriterIsDone) {
  WeightsGate gate;
  std::string log;
  gate.Enter([&] { log += "a"; });
  gate.RequestExclusive([&] { log += "W"; });
  gate.Enter([&] { log += "b"; });
  gate.Leave();
  EXPECT_EQ(log, "aW");
  gate.Enter([&] { log += "c"; });
  gate.ReleaseExclusive();
  EXPECT_EQ(log, "aWbc");
  // Both are inside now: the next writer waits for both.
  gate.RequestExclusive([&] { log += "V"; });
  gate.Leave();
  EXPECT_EQ(log, "aWbc");
  gate.Leave();
  EXPECT_EQ(log, "aWbcV");
  gate.ReleaseExclusive();
}

}  // namespace
}  // namespace penstock
