#include "server/http/listen_address.h"

#include <string>

#include "engine/base/error.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(ListenAddressTest, ReadsHostAndPort) {
  EXPECT_EQ(ParseListenAddress("127.0.0.1:8473", "f")->ToString(), "127.0.0.1:8473");
  EXPECT_EQ(ParseListenAddress("0.0.0.0:0", "f")->port, 0);
  EXPECT_EQ(ParseListenAddress("[::1]:65535", "f")->ToString(), "[::1]:65535");
  EXPECT_EQ(ParseListenAddress("localhost:1", "f")->host, "127.0.0.1");
}

TEST(ListenAddressTest, OnlyAddressesOfThisMachineAreLoopback) {
  for (const char* here : {"127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(ParseListenAddress(here, "f")->IsLoopback()) << here;
  }
  for (const char* everywhere : {"0.0.0.0:1", "10.0.0.1:1", "10.127.0.0:1", "[::]:1", "[fe80::1]:1"}) {
    EXPECT_FALSE(ParseListenAddress(everywhere, "f")->IsLoopback()) << everywhere;
  }
}

TEST(ListenAddressTest, RefusesAnythingElseAndNamesIt) {
  for (const char* bad : {"", ":", "8473", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                          "127.0.0.1:http", ":8473", "256.0.0.1:1", "::1:8473", "[127.0.0.1]:1", "[]:1", "[::1:1",
                          "example.org:1", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:80s", "unix:/x"}) {
    const absl::Status status = ParseListenAddress(bad, "metrics-listen").status();
    EXPECT_EQ(ReasonOf(status), "FIELD_INVALID") << bad;
    EXPECT_EQ(ValuesOf(status)["field"], "metrics-listen") << bad;
    EXPECT_EQ(ValuesOf(status)["value"], bad);
  }
}

}  // namespace
}  // namespace penstock
