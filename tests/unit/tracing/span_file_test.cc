#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tracing/span_sink.h"

namespace penstock {
namespace {

class SpanFileTest : public ::testing::Test {
 protected:
  SpanFileTest() {
    char name[] = "/tmp/penstock-spans-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/spans.jsonl";
  }
  ~SpanFileTest() override {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  std::string Content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  std::string path_;
  std::atomic<int64_t> never_ = std::numeric_limits<int64_t>::max();
};

TEST_F(SpanFileTest, EachBatchIsALineAddedAtTheEnd) {
  for (const char* batch : {"{\"a\":1}", "{\"b\":2}"}) {
    const auto sink = OpenSpanFile(path_);
    ASSERT_TRUE(sink.ok()) << sink.status();
    ASSERT_TRUE((*sink)->Send(batch, never_).ok());
  }
  EXPECT_EQ(Content(), "{\"a\":1}\n{\"b\":2}\n");
}

TEST_F(SpanFileTest, ALineThatWasCutOffIsEnded) {
  std::ofstream(path_) << "{\"a\":";
  const auto sink = OpenSpanFile(path_);
  ASSERT_TRUE(sink.ok()) << sink.status();
  for (const char* batch : {"{\"b\":1}", "{\"c\":2}"}) ASSERT_TRUE((*sink)->Send(batch, never_).ok());
  EXPECT_EQ(Content(), "{\"a\":\n{\"b\":1}\n{\"c\":2}\n");
}

TEST_F(SpanFileTest, IsItsOwnersAlone) {
  ASSERT_TRUE(OpenSpanFile(path_).ok());
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(SpanFileTest, AFolderThatIsNotThereIsNamed) {
  const auto sink = OpenSpanFile(folder_ + "/absent/spans.jsonl");
  ASSERT_FALSE(sink.ok());
  EXPECT_EQ(ReasonOf(sink.status()), "FIELD_INVALID");
  EXPECT_THAT(std::string(sink.status().message()), ::testing::HasSubstr("--otlp-file"));
}

TEST_F(SpanFileTest, AFullDiskIsAnError) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full here";
  const auto sink = OpenSpanFile("/dev/full");
  ASSERT_TRUE(sink.ok()) << sink.status();
  EXPECT_FALSE((*sink)->Send("{}", never_).ok());
}

}  // namespace
}  // namespace penstock
