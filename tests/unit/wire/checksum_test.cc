#include "engine/wire/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace penstock {
namespace {

std::string Bytes(int first, int step) {
  std::string bytes(32, '\0');
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<char>(first + i * step);
  return bytes;
}

std::string RandomBytes(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The vectors of RFC 3720, appendix B.4.
TEST(Checksum, EqualsThePublishedVectors) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(Bytes(0, 1)), 0x46dd794eu);
  EXPECT_EQ(Crc32c(Bytes(31, -1)), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

TEST(Checksum, OfNothingIsZero) { EXPECT_EQ(Crc32c(""), 0u); }

TEST(Checksum, ContinuesAcrossEveryCut) {
  const std::string bytes = RandomBytes(300);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::string_view view = bytes;
    EXPECT_EQ(ExtendCrc32c(Crc32c(view.substr(0, cut)), view.substr(cut)), Crc32c(bytes)) << cut;
  }
}

TEST(Checksum, CopyingGivesTheSameBytesAndChecksum) {
  for (size_t size : {0, 1, 63, 16383, 16384, 16385, 100000}) {
    const std::string bytes = RandomBytes(size);
    std::string copy(size, '\0');
    EXPECT_EQ(CopyAndExtendCrc32c(0, bytes, copy.data()), Crc32c(bytes)) << size;
    EXPECT_EQ(copy, bytes) << size;
  }
}

TEST(Checksum, SeesEveryFlippedBit) {
  std::string bytes = RandomBytes(64);
  const uint32_t good = Crc32c(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_NE(Crc32c(bytes), good) << bit;
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace penstock
