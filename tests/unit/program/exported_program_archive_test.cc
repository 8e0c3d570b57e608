#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/program/program_archive.h"
#include "tests/unit/program/program_archives.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ZipWriter;

void ExpectRefused(const std::string& bytes, const std::string& sentence) {
  const absl::StatusOr<ProgramArchive> archive = ProgramArchive::Open(bytes);
  ASSERT_FALSE(archive.ok()) << "should say: " << sentence;
  EXPECT_EQ(ReasonOf(archive.status()), "SPEC_INVALID");
  EXPECT_THAT(std::string(archive.status().message()), HasSubstr(sentence));
}

std::string WithRecord(ZipWriter::Record record) {
  ZipWriter zip;
  zip.Add({.name = "a/first", .data = "first"});
  zip.Add(std::move(record));
  return zip.Bytes();
}

TEST(ProgramArchive, FindsRecords) {
  const std::string bytes = WithRecord({.name = "a/folder/second", .data = "second content"});
  const absl::StatusOr<ProgramArchive> archive = ProgramArchive::Open(bytes);
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_THAT(archive->Names(), ElementsAre("first", "folder/second"));
  EXPECT_EQ(*archive->Read("folder/second"), "second content");
  EXPECT_EQ(archive->Read("folder/second")->data(), bytes.data() + bytes.find("second content")) << "no copy";
  EXPECT_FALSE(archive->Has("third"));
  EXPECT_THAT(std::string(archive->Read("third").status().message()), HasSubstr("must have a record, got third"));
}

TEST(ProgramArchive, ReadsWhatPyTorchWrites) {
  const std::string bytes = testing::GoldenFile("conv_net_both.pt2");
  const absl::StatusOr<ProgramArchive> archive = ProgramArchive::Open(bytes);
  ASSERT_TRUE(archive.ok()) << archive.status();
  for (const std::string& name : archive->Names()) EXPECT_TRUE(archive->Read(name).ok()) << name;
  EXPECT_EQ(*archive->Read("archive_format"), "pt2");
}

TEST(ProgramArchive, RefusesEverythingThatCouldInflate) {
  ExpectRefused(WithRecord({.name = "a/bomb", .data = "x", .method = 8}), "records must be stored");
  ExpectRefused(WithRecord({.name = "a/secret", .data = "x", .flags = 1}),
                "neither compressed nor encrypted (a file of TorchScript");
  ExpectRefused("junk", "must be a zip archive, got 4 bytes");
  ExpectRefused(WithRecord({.name = "a/lie", .data = "x", .size = 4'000'000'000}), "must have one size, got a/lie");
  ExpectRefused(WithRecord({.name = "a/lie", .data = "x", .stored_size = 4'000'000'000, .size = 4'000'000'000}),
                "must lie where the directory says");
  // Two records over the same bytes: the trick of "A better zip bomb" (Fifield, 2019).
  ExpectRefused(WithRecord({.name = "a/first2", .data = "x", .offset = 0, .local_name = "a/first2"}),
                "must lie where the directory says");
  ZipWriter overlapping;
  overlapping.Add({.name = "a/x", .data = "xx"});
  overlapping.Add({.name = "a/x", .data = "yy", .offset = 0});
  ExpectRefused(overlapping.Bytes(), "repeats a record");
  // A record inside of another one's bytes, with a header of its own.
  ZipWriter inside;
  inside.Add({.name = "a/inner", .data = "yy"});
  constexpr int kHeader = 30;  // bytes before a record's name
  const std::string inner = inside.Bytes().substr(0, kHeader + 7 + 2);
  ZipWriter nested;
  nested.Add({.name = "a/outer", .data = inner});
  nested.Add({.name = "a/inner", .data = "yy", .offset = kHeader + 7});
  ExpectRefused(nested.Bytes(), "records must not overlap");
}

TEST(ProgramArchive, RefusesNamesThatLeaveTheArchive) {
  for (const std::string name : {"../x", "a/../x", "/etc/x", "a//x", "a/./x", "a/", "a\\x", "C:/x", "a/..", ".."}) {
    ExpectRefused(WithRecord({.name = name, .data = "x"}), "a record");
  }
  ExpectRefused(WithRecord({.name = std::string("a/\0x", 4), .data = "x"}), "plain characters");
  ExpectRefused(WithRecord({.name = "a/" + std::string(600, 'x'), .data = "x"}), "plain characters");
  ExpectRefused(WithRecord({.name = "b/x", .data = "x"}), "all records must stand in one folder, got b/x");
  ExpectRefused(WithRecord({.name = "x", .data = "x"}), "all records must stand in one folder");
}

TEST(ProgramArchive, RefusesTwoStories) {
  ExpectRefused(WithRecord({.name = "a/shown", .data = "x", .local_name = "a/other"}), "must lie where the directory");
  ExpectRefused(WithRecord({.name = "a/first", .data = "x"}), "repeats a record, got a/first");
  std::string comment = WithRecord({.name = "a/x", .data = "x"});
  comment[comment.size() - 2] = 1;
  ExpectRefused(comment, "without a comment");
  std::string counted = WithRecord({.name = "a/x", .data = "x"});
  counted[counted.size() - 12] = counted[counted.size() - 14] = 1;
  ExpectRefused(counted, "directory has more than its entries");
}

TEST(ProgramArchive, KnowsAChangedByte) {
  std::string bytes = WithRecord({.name = "a/x", .data = "content of many bytes, more than eight"});
  bytes[bytes.find("many")] = 'M';
  const absl::StatusOr<ProgramArchive> archive = ProgramArchive::Open(bytes);
  ASSERT_TRUE(archive.ok());
  EXPECT_TRUE(archive->Read("first").ok());
  EXPECT_THAT(std::string(archive->Read("x").status().message()), HasSubstr("does not fit its checksum"));
}

// Every byte of the directory and the headers, each with several values.
TEST(ProgramArchive, SurvivesEveryDamagedByte) {
  const std::string whole = testing::GoldenFile("counting_training.pt2");
  int refused = 0;
  for (size_t at = 0; at<whole.size(); at += at + 3000> whole.size() ? 1 : 97) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const absl::StatusOr<ProgramArchive> archive = ProgramArchive::Open(damaged);
      if (!archive.ok()) {
        ++refused;
        continue;
      }
      for (const std::string& name : archive->Names()) (void)archive->Read(name);
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace penstock
