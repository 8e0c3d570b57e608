#include "engine/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

TEST(PrintableLength, IsThatOfTheFirstSequence) {
  EXPECT_EQ(PrintableLength("a"), 1u);
  EXPECT_EQ(PrintableLength("ü is one"), 2u);
  EXPECT_EQ(PrintableLength("✓"), 3u);
  EXPECT_EQ(PrintableLength("🚰"), 4u);
}

TEST(PrintableLength, IsZeroForWhatCantBeShown) {
  for (const std::string text : {"\n", "\x1b", "\x7f", "\xc2\x9b", "\xff", "\xc3", "\xc0\xaf", "\xe0\x80\xaf",
                                 "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xe2\x9c"}) {
    EXPECT_EQ(PrintableLength(text), 0u) << static_cast<int>(static_cast<unsigned char>(text[0]));
  }
}

}  // namespace
}  // namespace penstock
