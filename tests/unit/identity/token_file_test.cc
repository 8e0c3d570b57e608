#include "server/identity/token_file.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/ascii.h"
#include "engine/base/error.h"

namespace penstock::testing {
namespace {

// SHA-256 of "abc" and of "secret".
const std::string kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const std::string kSecret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

absl::Time Instant(const std::string& text) {
  absl::Time time;
  std::string problem;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, &problem)) << problem;
  return time;
}
const absl::Time kNoon = absl::FromUnixSeconds(1'800'000'000);

absl::Status TokenFault(const std::string& text) { return TokenFile::Parse(text, "tokens").status(); }

TEST(TokenFile, KnowsTokensByTheirDigest) {
  const auto file =
      TokenFile::Parse("# two\n" + kAbc + " ann\n" + absl::AsciiStrToUpper(kSecret) + "  bob  # new\n", "tokens");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 2u);
  EXPECT_EQ(file->NameOf("abc", kNoon).value(), "ann");
  EXPECT_EQ(file->NameOf("secret", kNoon).value(), "bob");
  for (const std::string wrong : {"", "ab", "abcd", kAbc.c_str()}) {
    const absl::Status fault = file->NameOf(wrong, kNoon).status();
    EXPECT_EQ(fault.code(), absl::StatusCode::kUnauthenticated) << wrong;
    EXPECT_EQ(ReasonOf(fault), "CREDENTIAL_INVALID") << wrong;
  }
}

TEST(TokenFile, ATokenEndsAtItsInstant) {
  const auto file = TokenFile::Parse(kAbc + " ann 2027-01-15T08:00:00Z\n", "tokens");
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Time end = Instant("2027-01-15T08:00:00Z");
  EXPECT_TRUE(file->NameOf("abc", end - absl::Nanoseconds(1)).ok());
  const absl::Status fault = file->NameOf("abc", end).status();
  EXPECT_EQ(fault.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(fault), "CREDENTIAL_EXPIRED");
  EXPECT_EQ(ValuesOf(fault)["identity"], "ann");
}

TEST(TokenFile, OneNameMayHaveAnOldAndANewToken) {
  const auto file = TokenFile::Parse(kAbc + " ann 2020-01-01T00:00:00Z\n" + kSecret + " ann\n", "tokens");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->NameOf("abc", kNoon).ok());
  EXPECT_EQ(file->NameOf("secret", kNoon).value(), "ann");
}

TEST(TokenFile, FaultsNameFileAndLine) {
  EXPECT_EQ(ValuesOf(TokenFault(kAbc + " ann\n" + kSecret + "\n"))["field"], "tokens:2");
  EXPECT_EQ(ValuesOf(TokenFault(kAbc + " a%\n"))["value"], "a%");
  EXPECT_EQ(ValuesOf(TokenFault(kAbc + " ann tomorrow\n"))["value"], "tomorrow");
  EXPECT_EQ(ReasonOf(TokenFault(kAbc + " ann 2027-01-01T00:00:00Z more\n")), "FIELD_INVALID");
  EXPECT_EQ(ReasonOf(TokenFault(kAbc + " ann\n" + kAbc + " bob\n")), "FIELD_INVALID");
  EXPECT_EQ(ReasonOf(TokenFault(kAbc.substr(1) + " ann\n")), "FIELD_INVALID");
}

TEST(TokenFile, AFaultNeverShowsAToken) {
  const absl::Status fault = TokenFault("my-own-token ann\n");
  EXPECT_EQ(ReasonOf(fault), "FIELD_INVALID");
  EXPECT_EQ(std::string(fault.message()).find("my-own"), std::string::npos) << fault;
  EXPECT_EQ(ValuesOf(fault)["value"], "12 characters");
}

}  // namespace
}  // namespace penstock::testing
