#include "engine/wire/sha256.h"

#include <gtest/gtest.h>

#include "engine/wire/sha256_thread.h"

namespace penstock {
namespace {

// The examples of FIPS 180-4.
TEST(Sha256, EqualsTheStandardsExamples) {
  EXPECT_EQ(Sha256::Of(""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256::Of("abc"), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  Sha256 digest;
  digest.Update("a");
  digest.Update("");
  digest.Update("bc");
  EXPECT_EQ(digest.Finish(), Sha256::Of("abc"));
}

TEST(Sha256, IsMadeBesideWhatComes) {
  std::string bytes(20 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 / 5);
  const std::string_view all = bytes;
  Sha256Thread pieces, whole, nothing;
  for (size_t end : {size_t{0}, size_t{1}, size_t{5 << 20}, size_t{5 << 20}, all.size()})
    pieces.Arrived(all.substr(0, end));
  whole.Arrived(all);
  EXPECT_EQ(*pieces.Finish(), Sha256::Of(all));
  EXPECT_EQ(*whole.Finish(), Sha256::Of(all));
  EXPECT_EQ(*nothing.Finish(), Sha256::Of(""));
}

TEST(Sha256, KnowsItsForm) {
  const std::string good = Sha256::Of("abc");
  EXPECT_TRUE(Sha256::IsDigest(good));
  std::string upper = good;
  upper[7] = 'B';
  for (const std::string& bad : {std::string(), good.substr(0, 70), good + "0", "SHA256:" + good.substr(7), upper}) {
    EXPECT_FALSE(Sha256::IsDigest(bad)) << bad;
  }
}

}  // namespace
}  // namespace penstock
