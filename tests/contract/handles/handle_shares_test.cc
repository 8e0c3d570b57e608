// Several handles of the same bytes: each lives for itself, and the bytes are charged once.

#include <gmock/gmock.h>

#include <functional>

#include "engine/base/thread.h"
#include "tests/contract/handles/handle_fixture.h"
#include "tests/support/failing_new.h"

namespace penstock::testing {
namespace {

constexpr int64_t kBytes = 16;  // of Tensors()

class HandleSharesTest : public HandleFixture {
 protected:
  explicit HandleSharesTest(HandleStore::Options options = {}) : HandleFixture(std::move(options)) {}

  HandleName Share(const HandleName& name, const std::string& recipient, absl::Duration lease = absl::ZeroDuration(),
                   const std::string& caller = "ann") {
    const absl::StatusOr<HandleInfo> share = store_->Share(caller, name, recipient, lease);
    EXPECT_TRUE(share.ok()) << share.status();
    return share.ok() ? share->name : HandleName();
  }
  std::string ReasonOfShare(const HandleName& name, const std::string& recipient = "bob",
                            const std::string& caller = "ann") {
    return ReasonOf(store_->Share(caller, name, recipient, absl::ZeroDuration()).status());
  }
  void Release(const HandleName& name, const std::string& owner) {
    const absl::Status released = store_->Release(owner, name).status();
    EXPECT_TRUE(released.ok()) << released;
  }
  // What an owner is charged for.
  int64_t Charged(const std::string& owner) {
    std::map<std::string, HandleStore::Use> owners = store_->UseByOwner();
    return owners[owner].bytes;
  }
  // The bytes are charged to one owner, and to nobody else.
  void ExpectChargedTo(const std::string& owner) {
    for (const char* one : {"ann", "bob", "cid"}) EXPECT_EQ(Charged(one), one == owner ? kBytes : 0) << one;
    EXPECT_EQ(store_->TotalCounts().bytes, owner.empty() ? 0 : kBytes);
  }
  float FirstOf(const HandlePin& pin) { return (*pin.tensors())[0].tensor[0].item<float>(); }
};

TEST_F(HandleSharesTest, AShareIsAHandleOfItsOwn) {
  const HandleName mine = Ready();
  const HandleName other = Ready();
  const HandleInfo share = *store_->Share("ann", mine, "bob", absl::Seconds(20));
  EXPECT_NE(share.name, mine);
  EXPECT_EQ(share.name.pipeline, "gpt");
  EXPECT_EQ(share.owner, "bob");
  EXPECT_EQ(share.state, HandleState::kReady);
  EXPECT_EQ(share.method, "ShareHandle");
  EXPECT_EQ(share.bytes, kBytes);
  EXPECT_EQ(share.tensors, store_->Get("ann", mine)->tensors);
  EXPECT_EQ(share.expire_time, clock_.WallNow() + absl::Seconds(20));
  EXPECT_EQ(store_->Get("ann", mine)->expire_time, clock_.WallNow() + absl::Seconds(60)) << "as it was";
  // The same tensors, not a copy.
  EXPECT_EQ(*store_->Pin("bob", share.name)->values(), *store_->Pin("ann", mine)->values());
  // Each sees its own alone.
  EXPECT_EQ(ReasonOfGet(share.name), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOfGet(mine, "bob"), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOfGet(other, "bob"), "HANDLE_NOT_FOUND");
  ASSERT_EQ(store_->List("bob", "gpt", 0, 10).handles.size(), 1);
  EXPECT_EQ(store_->List("bob", "gpt", 0, 10).handles[0].name, share.name);
  EXPECT_EQ(store_->List("ann", "gpt", 0, 10).handles.size(), 2);
}

TEST_F(HandleSharesTest, WhatCanNotBeSharedIsNamed) {
  const HandleName pending = Reserve();
  EXPECT_EQ(ReasonOfShare(pending), "HANDLE_PENDING");
  for (const HandleKind kind : {HandleKind::kGraph, HandleKind::kOutcome}) {
    const HandleName name = Reserve(kind);
    EXPECT_EQ(ReasonOfShare(name), "HANDLE_KIND");
  }
  const HandleName failed = Reserve();
  store_->Fail(failed.id, Error(absl::StatusCode::kInternal, "LAYER_FAILED", "no"));
  EXPECT_EQ(ReasonOfShare(failed), "LAYER_FAILED");
  const HandleName gone = Ready();
  Release(gone, "ann");
  EXPECT_EQ(ReasonOfShare(gone), "HANDLE_RELEASED");
  const HandleName mine = Ready();
  EXPECT_EQ(ReasonOfShare(mine, "eve", "eve"), "HANDLE_NOT_FOUND");
  HandleName old = mine;
  old.id.epoch = Epoch(6);
  EXPECT_EQ(ReasonOfShare(old), "EPOCH_MISMATCH");
  EXPECT_EQ(ReasonOf(store_->Share("ann", mine, "bob", absl::Hours(2)).status()), "FIELD_INVALID");
  EXPECT_TRUE(store_->List("bob", "", 0, 10).handles.empty());
  store_->Close();
  EXPECT_EQ(ReasonOfShare(mine), "DRAINING");
}

TEST_F(HandleSharesTest, TheChargeIsTheOldestLiveOnesWhoeverEndsFirst) {
  for (const bool expires : {false, true}) {
    SCOPED_TRACE(expires);
    const HandleName mine = Ready();
    const HandleName bobs = Share(mine, "bob", absl::Seconds(100));
    const HandleName cids = Share(bobs, "cid", absl::Seconds(200), "bob");
    ExpectChargedTo("ann");
    if (expires) {
      Advance(absl::Seconds(61));
      EXPECT_EQ(ReasonOfGet(mine), "HANDLE_EXPIRED");
    } else {
      Release(mine, "ann");
    }
    ExpectChargedTo("bob");
    const HandlePin pin = *store_->Pin("bob", bobs);
    EXPECT_EQ(FirstOf(pin), 1.5f);
    EXPECT_EQ(store_->Get("bob", bobs)->bytes, kBytes);
    if (expires) {
      Advance(absl::Seconds(60));
      EXPECT_EQ(ReasonOfGet(bobs, "bob"), "HANDLE_EXPIRED");
    } else {
      Release(bobs, "bob");
    }
    ExpectChargedTo("cid");
    Release(cids, "cid");
    ExpectChargedTo("bob");  // who still reads them
    EXPECT_EQ(FirstOf(pin), 1.5f);
  }
  ExpectChargedTo("");
}

TEST_F(HandleSharesTest, AYoungerShareEndsAndNothingMoves) {
  const HandleName mine = Ready();
  const HandleName bobs = Share(mine, "bob", absl::Seconds(20));
  const HandleName cids = Share(mine, "cid");
  Advance(absl::Seconds(21));
  EXPECT_EQ(ReasonOfGet(bobs, "bob"), "HANDLE_EXPIRED");
  ExpectChargedTo("ann");
  Release(mine, "ann");
  ExpectChargedTo("cid");  // not to bob, who has nothing any more
  Release(cids, "cid");
  ExpectChargedTo("");
}

TEST_F(HandleSharesTest, BytesThatAPinKeepsStayCharged) {
  const HandleName mine = Ready();
  const HandleName bobs = Share(mine, "bob");
  HandlePin read = *store_->Pin("bob", bobs);
  Release(bobs, "bob");
  ExpectChargedTo("ann");
  Release(mine, "ann");
  ExpectChargedTo("bob");  // nobody else keeps them
  EXPECT_EQ(FirstOf(read), 1.5f);
  read = HandlePin();
  ExpectChargedTo("");
}

TEST_F(HandleSharesTest, AFetchOfTheOriginalOutlivesIt) {
  const HandleName mine = Ready();
  HandlePin read = *store_->Pin("ann", mine);
  const HandleName bobs = Share(mine, "bob");
  Release(mine, "ann");
  ExpectChargedTo("bob");
  EXPECT_EQ(FirstOf(read), 1.5f);
  read = HandlePin();
  ExpectChargedTo("bob");
  EXPECT_EQ(FirstOf(*store_->Pin("bob", bobs)), 1.5f);
}

TEST_F(HandleSharesTest, AnEndedPipelineEndsEveryShare) {
  const HandleName mine = Ready();
  const HandleName bobs = Share(mine, "bob");
  store_->ReleasePipeline("gpt");
  EXPECT_EQ(ReasonOfGet(mine), "HANDLE_RELEASED");
  EXPECT_EQ(ReasonOfGet(bobs, "bob"), "HANDLE_RELEASED");
  ExpectChargedTo("");
}

TEST_F(HandleSharesTest, AWithdrawnShareLeavesNoTrace) {
  const HandleName mine = Ready();
  const HandleName bobs = Share(mine, "bob");
  store_->Withdraw(bobs.id);
  EXPECT_EQ(ReasonOfGet(bobs, "bob"), "HANDLE_NOT_FOUND");
  EXPECT_EQ(store_->TotalCounts().created, 1);
  ExpectChargedTo("ann");
  Release(mine, "ann");
  ExpectChargedTo("");
}

// Each allocation fails once, one after another.
TEST_F(HandleSharesTest, AShareThatFindsNoMemoryChangesNothing) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const HandleName mine = Ready();
  int thrown = 0;
  for (bool failed = true; failed;) {
    FailNewOnce(thrown);
    try {
      (void)store_->Share("ann", mine, "bob", absl::ZeroDuration());
    } catch (const std::bad_alloc&) {
      ++thrown;
      EXPECT_EQ(store_->TotalCounts().created, 1);
      EXPECT_TRUE(store_->List("bob", "", 0, 1).handles.empty());
      EXPECT_EQ(store_->UseByOwner().size(), 1);
      ExpectChargedTo("ann");
    }
    failed = StopFailingNew();
  }
  EXPECT_GT(thrown, 5);
  Release(mine, "ann");
  ExpectChargedTo("bob");
}

class FewHandlesTest : public HandleSharesTest {
 protected:
  FewHandlesTest()
      : HandleSharesTest({.budget = {.handles_per_owner = 2, .bytes = 4 * kBytes, .bytes_per_owner = kBytes}}) {}
};

TEST_F(FewHandlesTest, AShareAddsToTheNumberOfWhoShared) {
  const HandleName mine = Ready();
  const HandleName bobs = Share(mine, "bob");
  EXPECT_EQ(ReasonOfShare(mine), "HANDLE_BUDGET");
  EXPECT_EQ(ReasonOf(store_->Reserve({.owner = "ann", .pipeline = "gpt"}).status()), "HANDLE_BUDGET");
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(store_->Reserve({.owner = "bob", .pipeline = "gpt"}).ok()) << i;
  Release(bobs, "bob");
  EXPECT_TRUE(store_->Share("ann", mine, "bob", absl::ZeroDuration()).ok());
}

TEST_F(FewHandlesTest, TheChargeMovesBeyondTheLimitOfItsNewOwner) {
  const HandleName own = *store_->Reserve({.owner = "bob", .pipeline = "gpt", .bytes = kBytes});
  const HandleName mine = Ready();
  const HandleName bobs = Share(mine, "bob");
  Release(mine, "ann");
  EXPECT_EQ(Charged("ann"), 0);
  EXPECT_EQ(Charged("bob"), 2 * kBytes);
  EXPECT_EQ(ReasonOf(store_->Reserve({.owner = "bob", .pipeline = "gpt", .bytes = 1}).status()), "HANDLE_BUDGET");
  Release(own, "bob");
  Release(bobs, "bob");
  EXPECT_TRUE(store_->Reserve({.owner = "bob", .pipeline = "gpt", .bytes = kBytes}).ok());
}

// Whichever comes first: a share, or the end of what it is a share of.
TEST_F(HandleSharesTest, ShareAndReleaseAndExpiryRace) {
  enum class Order { kShareFirst, kReleaseFirst, kAtOnce };
  for (int round = 0; round < 200; ++round) {
    for (const Order order : {Order::kShareFirst, Order::kReleaseFirst, Order::kAtOnce}) {
      const HandleName mine = Ready();
      absl::StatusOr<HandleInfo> share;
      const auto give = [&] { share = store_->Share("ann", mine, "bob", absl::ZeroDuration()); };
      const auto end = [&] { store_->Release("ann", mine).IgnoreError(); };
      if (order == Order::kAtOnce) {
        absl::Notification go;
        const auto after = [&](const auto& act) {
          return [&go, &act] {
            go.WaitForNotification();
            act();
          };
        };
        Thread one("one", after(give));
        Thread other("other", after(end));
        go.Notify();
        one.Join();
        other.Join();
      } else {
        order == Order::kShareFirst ? give() : end();
        order == Order::kShareFirst ? end() : give();
      }
      if (order == Order::kShareFirst) EXPECT_TRUE(share.ok()) << share.status();
      if (order == Order::kReleaseFirst) EXPECT_FALSE(share.ok());
      if (share.ok()) {
        ExpectChargedTo("bob");
        EXPECT_EQ(FirstOf(*store_->Pin("bob", share->name)), 1.5f);
        Release(share->name, "bob");
      } else {
        EXPECT_EQ(ReasonOf(share.status()), "HANDLE_RELEASED");
      }
      ExpectChargedTo("");
    }
  }
}

// Many share, read and release the same bytes side by side; at the end nothing is left.
TEST_F(HandleSharesTest, ManyAtOnceLeaveNothing) {
  constexpr int kRounds = 100;
  const HandleName mine = Ready();
  std::vector<std::unique_ptr<Thread>> threads;
  for (const std::string owner : {"bob", "cid", "dan", "eve"}) {
    threads.push_back(std::make_unique<Thread>(owner, [this, owner, mine] {
      for (int round = 0; round < kRounds; ++round) {
        const HandleName first = Share(mine, owner);
        const HandlePin pin = *store_->Pin(owner, first);
        const HandleName second = Share(first, "ann", absl::ZeroDuration(), owner);
        Release(first, owner);
        EXPECT_EQ(FirstOf(pin), 1.5f);
        Release(second, "ann");
        EXPECT_EQ(store_->TotalCounts().bytes, kBytes);
      }
    }));
  }
  for (const auto& thread : threads) thread->Join();
  ExpectChargedTo("ann");
  Release(mine, "ann");
  ExpectChargedTo("");
  EXPECT_EQ(store_->TotalCounts().live(), 0);
}

}  // namespace
}  // namespace penstock::testing
