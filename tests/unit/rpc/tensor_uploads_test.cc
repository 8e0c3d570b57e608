// What is kept of uploads that are complete, and for how long.

#include "server/rpc/streams/tensor_uploads.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <utility>

#include "engine/base/error.h"
#include "engine/wire/checksum.h"
#include "tests/support/failing_new.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

class TensorUploadsTest : public ::testing::Test {
 protected:
  ~TensorUploadsTest() override {
    table_->Close();
    handles_.Close();
  }

  // Sends a tensor without elements, which is complete at once.
  absl::StatusOr<TensorUploads::Hold> Attach(const std::string& request_id, const std::string& caller = "ann") {
    return table_->Attach({.caller = caller,
                           .pipeline = "gpt",
                           .request_id = request_id,
                           .headers = {{"input", DataType::kFp32, {0}, 0}},
                           .lease = absl::Hours(1)});
  }
  // Begins, or goes on with, a put of a large tensor.
  absl::StatusOr<TensorUploads::Hold> Announce(const std::string& caller, int64_t bytes = 90 << 20) {
    return table_->Attach({.caller = caller,
                           .pipeline = "gpt",
                           .request_id = "large",
                           .headers = {{"input", DataType::kUint8, {bytes}, bytes}},
                           .lease = absl::Hours(1)});
  }
  absl::StatusOr<TensorUploads::Position> Send(const TensorUploads::Hold& hold, int64_t offset) {
    const std::string data(kChunk, 'd');
    return table_->Add(hold, {.offset = offset, .data = {data}, .checksum = Crc32c(data)});
  }
  // Returns which handle holds it.
  HandleName Put(const std::string& request_id) {
    const auto hold = Attach(request_id);
    EXPECT_TRUE(hold.ok()) << hold.status();
    const HandleName name = table_->NameOf(*hold);
    table_->Detach(*hold);
    return name;
  }

  static constexpr int64_t kChunk = 256 << 10;
  static constexpr int64_t kBudget = 128 << 20;

  testing::FakeClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore handles_{{.budget = {.bytes = kBudget, .bytes_per_owner = kBudget}}, &clock_, &timers_};
  const std::shared_ptr<TensorUploads> table_ =
      std::make_shared<TensorUploads>(&handles_, &timers_, &clock_, /*most_complete=*/4);
};

TEST_F(TensorUploadsTest, ACompleteUploadIsFoundByItsRequestIdForItsTime) {
  const HandleName first = Put("a");
  clock_.Advance(TensorUploads::kCompleteLife - absl::Nanoseconds(1));
  Put("b");
  EXPECT_TRUE(Put("a") == first);
  clock_.Advance(TensorUploads::kCompleteLife);
  Put("c");
  EXPECT_FALSE(Put("a") == first);
}

// Each allocation fails once.
TEST_F(TensorUploadsTest, AStartThatFindsNoMemoryHoldsNothing) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  int thrown = 0;
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    absl::Status status;
    testing::FailNewOnce(spared);
    try {
      status = Announce("ann").status();
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
    failed = testing::StopFailingNew();
    if (failed && status.ok()) EXPECT_EQ(handles_.TotalCounts().live(), 0);
  }
  EXPECT_GT(thrown, 5);
  EXPECT_EQ(handles_.TotalCounts().live(), 1);
}

TEST_F(TensorUploadsTest, WhatIsKeptHasALimit) {
  const HandleName first = Put("1");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Put("1") == first) << "what is there is found, and counts once";
  EXPECT_TRUE(Attach("4", "bob").ok());
  Put("2");
  Put("3");
  EXPECT_EQ(ReasonOf(Attach("5").status()), "REQUEST_LOG_FULL") << "her share is used up";
  EXPECT_TRUE(Attach("5", "bob").ok()) << "others have room";
  EXPECT_TRUE(Attach("").ok()) << "nothing is kept of it";
  clock_.Advance(TensorUploads::kCompleteLife);
  EXPECT_TRUE(Attach("5").ok());
}

TEST_F(TensorUploadsTest, MemoryIsHeldForWhatCameAndForCreditNotForWhatWasAnnounced) {
  const auto ann = Announce("ann");
  const auto bob = Announce("bob");
  ASSERT_TRUE(ann.ok() && bob.ok()) << bob.status();
  EXPECT_EQ(handles_.TotalCounts().bytes, 2 * kPutCreditBytes);
  EXPECT_TRUE(handles_.Reserve({.owner = "carl", .pipeline = "gpt", .bytes = 30 << 20}).ok());
  // The chunks that come are held beside the credit.
  ASSERT_TRUE(Send(*ann, 0).ok());
  EXPECT_EQ(handles_.TotalCounts().bytes, 2 * kPutCreditBytes + (30 << 20) + kChunk);
  // While nobody sends, there is no credit.
  table_->Detach(*ann);
  EXPECT_EQ(handles_.TotalCounts().bytes, kPutCreditBytes + (30 << 20) + kChunk);
  table_->Detach(*bob);
  EXPECT_EQ(handles_.TotalCounts().bytes, (30 << 20) + kChunk);
}

TEST_F(TensorUploadsTest, APutThatMeetsAFullBudgetGoesOnWhenThereIsRoom) {
  const auto ann = Announce("ann");
  ASSERT_TRUE(ann.ok());
  const auto others = handles_.Reserve({.owner = "bob", .pipeline = "gpt", .bytes = kBudget - kPutCreditBytes});
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(ReasonOf(Send(*ann, 0).status()), "HANDLE_BUDGET");
  table_->Detach(*ann);
  handles_.Withdraw(others->id);
  const auto again = Announce("ann");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(table_->Where(*again)->offset, kChunk);
  EXPECT_TRUE(Send(*again, kChunk).ok());
  EXPECT_EQ(ReasonOf(Announce("carl", kBudget).status()), "HANDLE_BUDGET") << "what can't fit is refused at once";
}

TEST_F(TensorUploadsTest, APutWhoseHandleWasReleasedIsGivenUp) {
  const auto ann = Announce("ann");
  ASSERT_TRUE(handles_.Release("ann", table_->NameOf(*ann)).ok());
  EXPECT_EQ(ReasonOf(Send(*ann, 0).status()), "HANDLE_RELEASED");
  table_->Detach(*ann);
  const auto again = Announce("ann");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(table_->Where(*again)->offset, 0) << "nothing was kept";
}

// A clock that lets something happen when it is asked the time.
class InterruptedClock : public testing::FakeClock {
 public:
  int64_t NowNanos() override {
    if (before_answer != nullptr && in-- == 0) std::exchange(before_answer, nullptr)();
    return FakeClock::NowNanos();
  }
  int in = 0;
  std::function<void()> before_answer;
};

TEST_F(TensorUploadsTest, TwoStreamsThatBeginAtOnceHaveOneUpload) {
  InterruptedClock clock;
  const auto table = std::make_shared<TensorUploads>(&handles_, &timers_, &clock);
  const auto attach = [&] {
    return table->Attach({.caller = "ann",
                          .pipeline = "gpt",
                          .request_id = "id",
                          .headers = {{"input", DataType::kUint8, {9}, 9}},
                          .lease = absl::Hours(1)});
  };
  absl::StatusOr<TensorUploads::Hold> inner;
  clock.in = 1;  // when the outer one has looked for an upload
  clock.before_answer = [&] { inner = attach(); };
  const absl::StatusOr<TensorUploads::Hold> outer = attach();
  ASSERT_TRUE(inner.ok() && outer.ok()) << inner.status() << outer.status();
  EXPECT_TRUE(table->NameOf(*inner) == table->NameOf(*outer));
  EXPECT_EQ(handles_.TotalCounts().live(), 1);
  EXPECT_EQ(ReasonOf(table->Where(*inner).status()), "STREAM_PROTOCOL") << "the later one goes on with it";
  EXPECT_TRUE(table->Where(*outer).ok());
  table->Close();
}

TEST_F(TensorUploadsTest, APutThatBrokeOffIsKeptForItsTime) {
  const auto ann = Announce("ann");
  ASSERT_TRUE(Send(*ann, 0).ok());
  table_->Detach(*ann);
  const auto pass = [this](absl::Duration time) {
    clock_.Advance(time);
    timers_.SettleForTest();
  };
  pass(TensorUploads::kBrokenLife - absl::Nanoseconds(1));
  EXPECT_EQ(handles_.TotalCounts().bytes, kChunk);
  pass(absl::Nanoseconds(1));
  EXPECT_EQ(handles_.TotalCounts().live(), 0);
}

TEST_F(TensorUploadsTest, APutMustBeCompleteInTime) {
  const auto first = Announce("ann");
  EXPECT_EQ(first->end_nanos, clock_.NowNanos() + absl::ToInt64Nanoseconds(TensorUploads::kMaxAge));
  clock_.Advance(TensorUploads::kMaxAge - absl::Nanoseconds(1));
  table_->Detach(*first);
  const auto second = Announce("ann");
  EXPECT_EQ(second->end_nanos, first->end_nanos) << "a stream that goes on has no more time";
  clock_.Advance(absl::Nanoseconds(1));
  table_->Detach(*second);
  EXPECT_EQ(handles_.TotalCounts().live(), 0) << "it is not kept";
}

}  // namespace
}  // namespace penstock
