// What leaders and ranks do where there is no memory for a moment: it stops nothing for good.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "server/peer/group_service.h"
#include "server/peer/leader_link.h"
#include "tests/support/failing_new.h"
#include "tests/unit/peer/fake_leader.h"
#include "tests/unit/peer/group_world.h"

namespace penstock::testing {
namespace {

// A clock that shows what another one does, and calls a function once it is read.
class WatchedClock : public Clock {
 public:
  explicit WatchedClock(FakeClock* clock) : clock_(clock) {}

  int64_t NowNanos() override {
    std::function<void()> then;
    {
      absl::MutexLock lock(&mu_);
      then.swap(then_);
    }
    if (then) then();
    return clock_->NowNanos();
  }
  absl::Time WallNow() override { return clock_->WallNow(); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, int64_t deadline_nanos) override {
    return clock_->AwaitUntil(mutex, condition, deadline_nanos);
  }

  void AtTheNextRead(std::function<void()> then) {
    absl::MutexLock lock(&mu_);
    then_ = std::move(then);
  }

 private:
  FakeClock* const clock_;
  absl::Mutex mu_;
  std::function<void()> then_ ABSL_GUARDED_BY(mu_);
};

// Whoever uses the group, and the line to its one member: nothing is done.
class Nobody : public MembershipListener, public MemberLine {
 public:
  void OnFormed(const Group&, const std::map<Rank, FormedRank>&) override {}
  void OnLost(Rank, const absl::Status&) override {}
  void OnFailed(Rank, const GroupIdentity&, const absl::Status&) override {}
  absl::Status OnTold(Rank, MessagePart) override { return absl::OkStatus(); }
  void Welcome(Epoch, absl::Duration) override {}
  void Prepare(const GroupIdentity&) override {}
  void Form(const Group&) override {}
  void Dissolve(const GroupIdentity&, Rank, const absl::Status&) override {}
  void Draining(bool) override {}
  void Ping(int64_t) override { ++pings; }
  void Tell(std::vector<MessagePart>) override {}
  void End(const absl::Status&) override {}

  std::atomic<int> pings = 0;
};

TEST(PeerGroupMemory, RanksArePingedAgainAfterALookForWhichThereWasNone) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  World world{.peer_timeout = absl::Seconds(5)};
  WatchedClock clock(&world.clock);
  Nobody listener;
  const auto line = std::make_shared<Nobody>();
  Membership membership({.epoch = Epoch(1), .world_size = world.size, .build = "1.0", .clock = &clock}, &listener);
  ASSERT_TRUE(membership.Join(Describe(world, 1), line).ok());
  const Authenticator authenticator({}, &world.clock);
  GroupServiceImpl service(&authenticator, &membership, &world.timers, &world.clock);
  service.Start();
  clock.AtTheNextRead([] { FailNew(); });
  bool failed = false;
  const int64_t next = world.clock.NowNanos() + absl::ToInt64Nanoseconds(Membership::kPause);
  world.timers.Add(next, [&] { failed = StopFailingNew(); });  // after the look
  world.clock.Advance(Membership::kPause);
  world.timers.SettleForTest();
  ASSERT_TRUE(failed);
  EXPECT_EQ(line->pings, 0);
  for (int i = 0; i < 5; ++i) {
    world.clock.Advance(Membership::kPause);
    world.timers.SettleForTest();
  }
  EXPECT_GT(line->pings, 0);
  membership.Close();
  service.Close();
}

class LeaderLinkMemory : public ::testing::Test, public RankHandler {
 protected:
  void OnPrepare(const GroupIdentity&) override {}
  void OnForm(const Group&) override {}
  void OnDissolve(const GroupIdentity&, Rank, const absl::Status&) override {}
  void OnDraining(bool) override {}
  absl::Status OnTold(MessagePart) override { return absl::OkStatus(); }
  std::map<Rank, LinkFigures> Received() const override { return {}; }
  void OnLeaderLost(const absl::Status& why) override { world_.events.Add("lost " + ReasonOf(why)); }

  std::unique_ptr<LeaderLink> Make(const std::string& leader) {
    return std::make_unique<LeaderLink>(LeaderLink::Options{.self = Describe(world_, 1),
                                                            .leader = leader,
                                                            .credentials =
                                                                [this] {
                                                                  if (missing_-- > 0) throw std::bad_alloc();
                                                                  return grpc::InsecureChannelCredentials();
                                                                },
                                                            .peer_timeout = world_.peer_timeout,
                                                            .clock = &clock_},
                                        &world_.timers, this);
  }
  bool AwaitWelcome(const LeaderLink& link) {
    return world_.AwaitTries(
        [&](absl::Duration patience) { return link.status().ok() || (world_.events.Await("never", patience), false); });
  }

  World world_{.peer_timeout = absl::Seconds(5)};
  WatchedClock clock_{&world_.clock};
  std::atomic<int> missing_ = 0;  // connections for which there is no memory
};

TEST_F(LeaderLinkMemory, AStreamForWhichThereIsNoneIsTriedAgain) {
  std::atomic<int> joined = 0;
  FakeLeader leader([&](FakeLeader::Stream* stream) {
    FakeLeader::Hear(stream);
    FakeLeader::Welcome(stream, 4);
    if (++joined > 1) FakeLeader::Hear(stream);  // until the rank has gone
  });
  missing_ = 2;
  const auto link = Make(leader.address());
  link->Start();
  EXPECT_EQ(ReasonOf(link->status()), "HOST_MEMORY");
  ASSERT_TRUE(world_.AwaitTries("lost RANK_LOST"));  // it was there, and has gone at once
  missing_ = 2;
  EXPECT_TRUE(AwaitWelcome(*link));
  EXPECT_LE(missing_, 0);
}

// Within gRPC nothing may be missing: it ends the process, or hangs.
TEST_F(LeaderLinkMemory, AStreamThatCannotBeginIsTriedAgainAndEnds) {
  FakeLeader leader([&](FakeLeader::Stream* stream) {
    FakeLeader::Hear(stream);
    FakeLeader::Welcome(stream, 4);
    FakeLeader::Hear(stream);  // until the rank has gone
  });
  const auto link = Make(leader.address());
  clock_.AtTheNextRead([] { throw std::bad_alloc(); });
  link->Start();
  EXPECT_EQ(ReasonOf(link->status()), "HOST_MEMORY");
  EXPECT_TRUE(AwaitWelcome(*link));
}

TEST_F(LeaderLinkMemory, ALeaderIsWatchedThoughThereWasNoneForAMoment) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  FakeLeader leader([&](FakeLeader::Stream* stream) {
    FakeLeader::Hear(stream);
    FakeLeader::Welcome(stream, 4);
    world_.events.Await("speak");
    stream->Write([] {
      peer::v1::LeaderMessage ping;
      ping.mutable_ping()->set_leader_nanos(1);
      return ping;
    }());
    FakeLeader::Hear(stream);
    world_.events.Add("pong");
    FakeLeader::Hear(stream);  // until the rank has gone
  });
  const auto link = Make(leader.address());
  link->Start();
  ASSERT_TRUE(AwaitWelcome(*link));
  const auto look_without_memory = [&](absl::Duration after) {
    clock_.AtTheNextRead([] { FailNew(); });
    world_.timers.Add(world_.clock.NowNanos() + absl::ToInt64Nanoseconds(after), [] { StopFailingNew(); });
    world_.clock.Advance(after);
    world_.timers.SettleForTest();
  };
  world_.clock.Advance(absl::Seconds(2));
  world_.events.Add("speak");
  ASSERT_TRUE(world_.events.Await("pong"));
  look_without_memory(absl::Seconds(3));
  EXPECT_TRUE(link->status().ok()) << "it spoke 3 s ago";
  look_without_memory(absl::Seconds(2));
  world_.clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(world_.events.Await("lost RANK_LOST"));
}

}  // namespace
}  // namespace penstock::testing
