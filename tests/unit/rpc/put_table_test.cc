// What is kept of uploads that are complete, and for how long.

#include "server/rpc/put_table.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

class PutTableTest : public ::testing::Test {
 protected:
  ~PutTableTest() override {
    table_->Close();
    handles_.Close();
  }

  // Sends a tensor without elements, which is complete at once.
  absl::StatusOr<PutTable::Hold> Attach(const std::string& request_id) {
    return table_->Attach({.caller = "ann",
                           .pipeline = "gpt",
                           .request_id = request_id,
                           .headers = {{"input", DataType::kFp32, {0}, 0}},
                           .lease = absl::Hours(1)});
  }
  // Answers which handle holds it.
  HandleName Put(const std::string& request_id) {
    const auto hold = Attach(request_id);
    EXPECT_TRUE(hold.ok()) << hold.status();
    const HandleName name = table_->NameOf(*hold);
    table_->Detach(*hold);
    return name;
  }

  testing::FakeClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore handles_{HandleStore::Options(), &clock_, &timers_};
  const std::shared_ptr<PutTable> table_ =
      std::make_shared<PutTable>(&handles_, &timers_, &clock_, /*most_complete=*/4);
};

TEST_F(PutTableTest, ACompleteUploadIsFoundByItsRequestIdForItsTime) {
  const HandleName first = Put("a");
  clock_.Advance(PutTable::kCompleteLife - absl::Nanoseconds(1));
  Put("b");
  EXPECT_TRUE(Put("a") == first);
  clock_.Advance(PutTable::kCompleteLife);
  Put("c");
  EXPECT_FALSE(Put("a") == first);
}

TEST_F(PutTableTest, WhatIsKeptHasALimit) {
  const HandleName first = Put("1");
  for (const char* id : {"2", "3"}) Put(id);
  EXPECT_TRUE(Put("1") == first) << "what is there is found";
  EXPECT_EQ(ReasonOf(Attach("5").status()), "REQUEST_LOG_FULL");
  EXPECT_TRUE(Attach("").ok()) << "nothing is kept of it";
  clock_.Advance(PutTable::kCompleteLife);
  EXPECT_TRUE(Attach("5").ok());
}

}  // namespace
}  // namespace penstock
