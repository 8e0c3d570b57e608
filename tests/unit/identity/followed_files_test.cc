#include "server/identity/followed_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/identity/test_files.h"

namespace penstock::testing {
namespace {

class FollowedFilesTest : public ::testing::Test {
 protected:
  // Follows two files together; a content "bad" in the first is refused, "worse" throws.
  absl::Status Follow() {
    return followed_.Follow("--pair", {files_.Path("a"), files_.Path("b")},
                            [this](const std::vector<std::string>& contents) -> absl::Status {
                              if (contents[0] == "bad") return InvalidField("--pair", "must be good", "bad");
                              if (contents[0] == "worse") throw std::runtime_error("worse");
                              absl::MutexLock lock(&mu_);
                              taken_.push_back(contents[0] + contents[1]);
                              return absl::OkStatus();
                            });
  }
  std::vector<std::string> taken() {
    absl::MutexLock lock(&mu_);
    return taken_;
  }

  TestFiles files_;
  FakeClock clock_;
  absl::Mutex mu_;
  std::vector<std::string> taken_;
  int refused_ = 0;
  FollowedFiles followed_{&clock_, [this] { ++refused_; }};
};

using Texts = std::vector<std::string>;

TEST_F(FollowedFilesTest, AreTakenAtOnceAndWhenOneChanges) {
  files_.Write("a", "1");
  files_.Write("b", "2");
  ASSERT_TRUE(Follow().ok());
  EXPECT_EQ(taken(), Texts{"12"});
  EXPECT_EQ(followed_.LookForTest(), 0);
  files_.Write("b", "3");
  EXPECT_EQ(followed_.LookForTest(), 1);
  EXPECT_EQ(taken(), (Texts{"12", "13"}));
  EXPECT_EQ(refused_, 0);
}

TEST_F(FollowedFilesTest, MustBeGoodAtTheStart) {
  EXPECT_EQ(ValuesOf(Follow())["field"], "--pair");
  files_.Write("a", "bad");
  files_.Write("b", "2");
  EXPECT_EQ(ValuesOf(Follow())["value"], "bad");
  EXPECT_EQ(taken(), Texts());
}

TEST_F(FollowedFilesTest, ABadOneIsRefusedAndCountedOnce) {
  files_.Write("a", "1");
  files_.Write("b", "2");
  ASSERT_TRUE(Follow().ok());
  files_.Write("a", "bad");
  EXPECT_EQ(followed_.LookForTest(), 0);
  EXPECT_EQ(followed_.LookForTest(), 0);
  EXPECT_EQ(refused_, 1);
  files_.Write("a", "worse");
  followed_.LookForTest();
  EXPECT_EQ(refused_, 2);
  files_.Write("a", "4");
  EXPECT_EQ(followed_.LookForTest(), 1);
  EXPECT_EQ(taken(), (Texts{"12", "42"}));
}

TEST_F(FollowedFilesTest, AMissingOneIsRefusedUntilItIsBack) {
  files_.Write("a", "1");
  files_.Write("b", "2");
  ASSERT_TRUE(Follow().ok());
  std::filesystem::remove(files_.Path("a"));
  followed_.LookForTest();
  followed_.LookForTest();
  EXPECT_EQ(refused_, 1);
  files_.Write("a", "1");
  EXPECT_EQ(followed_.LookForTest(), 0) << "as it was";
  std::filesystem::remove(files_.Path("a"));
  followed_.LookForTest();
  EXPECT_EQ(refused_, 2);
}

TEST_F(FollowedFilesTest, ALinkThatIsSwappedCounts) {
  files_.Write("old", "1");
  files_.Write("new", "5");
  files_.Write("b", "2");
  std::filesystem::create_symlink("old", files_.Path("a"));
  ASSERT_TRUE(Follow().ok());
  std::filesystem::create_symlink("new", files_.Path("next"));
  std::filesystem::rename(files_.Path("next"), files_.Path("a"));
  EXPECT_EQ(followed_.LookForTest(), 1);
  EXPECT_EQ(taken(), (Texts{"12", "52"}));
}

TEST_F(FollowedFilesTest, TheThreadLooksEachInterval) {
  files_.Write("a", "1");
  files_.Write("b", "2");
  ASSERT_TRUE(Follow().ok());
  followed_.Start();
  clock_.AwaitWaiters(1);
  files_.Write("a", "6");
  clock_.Advance(FollowedFiles::kInterval - absl::Nanoseconds(1));
  EXPECT_EQ(taken(), Texts{"12"});
  clock_.Advance(absl::Nanoseconds(1));
  const auto changed = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return taken_.size() == 2; };
  absl::MutexLock lock(&mu_, absl::Condition(&changed));
  EXPECT_EQ(taken_.back(), "62");
}

}  // namespace
}  // namespace penstock::testing
