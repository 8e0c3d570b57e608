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

TEST(IsUtf8, HoldsForControlCharactersAndNotForWhatIsCutShort) {
  for (const std::string text : {"", "a", "ü✓🚰", "\n\x1b\x7f", "\xc2\x9b", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(IsUtf8(text)) << text;
  EXPECT_TRUE(IsUtf8(std::string(2, '\0')));
  for (const std::string text : {"\xff", "a\xc3", "\xc0\xaf", "\xe0\x80\xaf", "ü\xed\xa0\x80", "\xf0\x80\x80\x80",
                                 "\xf4\x90\x80\x80", "\xe2\x9c", "\x80"}) {
    EXPECT_FALSE(IsUtf8(text));
  }
}

}  // namespace
}  // namespace penstock
