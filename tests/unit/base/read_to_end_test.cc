#include "engine/base/read_to_end.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(ReadToEnd, ReadsAFileThatIsAsLongAsMayBe) {
  const std::string path = ::testing::TempDir() + "/penstock_read_to_end";
  const std::string text(200'000, 'x');
  std::ofstream(path) << text;
  EXPECT_EQ(ReadToEnd(path, 200'000).value(), text);
  EXPECT_EQ(ReadToEnd(path, 1 << 30).value(), text);
  EXPECT_EQ(ReadToEnd(path, 199'999).status().message(), "read: it has more than 199999 bytes");
}

TEST(ReadToEnd, AFileWithoutAnEndIsRefused) {
  EXPECT_EQ(ReadToEnd("/dev/zero", 100).status().message(), "read: it has more than 100 bytes");
}

}  // namespace
}  // namespace penstock
