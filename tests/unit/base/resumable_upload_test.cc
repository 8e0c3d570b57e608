#include "engine/base/resumable_upload.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(UploadTurnsTest, TheLatestStreamHasTheUpload) {
  UploadTurns turns;
  const int64_t first = turns.Take();
  EXPECT_TRUE(turns.Has(first));
  const int64_t second = turns.Take();
  EXPECT_FALSE(turns.Has(first));
  EXPECT_TRUE(turns.Has(second));
}

TEST(UploadTurnsTest, NobodyHasAnUploadThatIsOver) {
  UploadTurns turns;
  const int64_t turn = turns.Take();
  turns.End();
  EXPECT_TRUE(turns.over());
  EXPECT_FALSE(turns.Has(turn));
  EXPECT_FALSE(turns.Has(turns.Take()));
}

}  // namespace
}  // namespace penstock
