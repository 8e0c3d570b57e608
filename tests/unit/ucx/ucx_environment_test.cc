#include "engine/ucx/ucx_environment.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/base/error.h"
#include "engine/ucx/ucx_carrier.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

class UcxEnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override {
    Clear();
    EXPECT_EQ(dlopen("libucs.so.0", RTLD_LAZY | RTLD_NOLOAD), nullptr);
  }

 private:
  static void Clear() {
    for (const auto& [name, value] : UcxEnvironment({.network_interface = "lo", .port_range = "1-2"})) {
      unsetenv(name.c_str());
    }
  }
};

TEST_F(UcxEnvironmentTest, IsPreparedWhereAnOperatorHasSaidNothing) {
  setenv("UCX_NET_DEVICES", "eth7", /*overwrite=*/1);
  setenv("UCX_TCP_TX_SEG_SIZE", "64K", /*overwrite=*/1);
  PrepareUcxEnvironment({.network_interface = "lo", .port_range = "8500-8599"});
  EXPECT_STREQ(std::getenv("UCX_NET_DEVICES"), "eth7");
  EXPECT_STREQ(std::getenv("UCX_TCP_TX_SEG_SIZE"), "64K");
  EXPECT_STREQ(std::getenv("UCX_TCP_RX_SEG_SIZE"), "272K");
  EXPECT_STREQ(std::getenv("UCX_TCP_PORT_RANGE"), "8500-8599");
  EXPECT_STREQ(std::getenv("UCX_TLS"), "tcp");
  EXPECT_TRUE(CheckUcxEnvironment().ok());
}

TEST_F(UcxEnvironmentTest, StopsACarrierWhereAnythingElseWouldCostThisProcess) {
  for (const char* const name : {"UCX_TLS", "UCX_TCP_PUT_ENABLE", "UCX_ZCOPY_THRESH", "UCX_TCP_CONN_NB",
                                 "UCX_MEM_EVENTS", "UCX_HANDLE_ERRORS", "UCX_DEBUG_SIGNO"}) {
    setenv(name, "other", /*overwrite=*/1);
    PrepareUcxEnvironment();
    const absl::Status other = UcxCarrier::Create({}).status();
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_EQ(ReasonOf(other), "FEATURE_DISABLED") << name;
    EXPECT_THAT(std::string(other.message()), HasSubstr(std::string("which has ") + name + "=other; unset it"));
    unsetenv(name);
    const absl::Status missing = UcxCarrier::Create({}).status();
    EXPECT_EQ(ReasonOf(missing), "FEATURE_DISABLED") << name;
    EXPECT_THAT(std::string(missing.message()), HasSubstr(std::string("needs ") + name + "="));
  }
}

}  // namespace
}  // namespace penstock
