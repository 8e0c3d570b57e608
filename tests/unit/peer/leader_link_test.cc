// What a rank does with leaders that are silent, wrong or not there.

#include "server/peer/leader_link.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "tests/unit/peer/fake_leader.h"
#include "tests/unit/peer/group_world.h"

namespace penstock::testing {
namespace {

TEST(LeaderLink, AnswersPingsAndLeavesALeaderThatIsSilent) {
  World world{.peer_timeout = absl::Minutes(1)};  // the leader says five seconds
  FakeLeader leader([&](FakeLeader::Stream* stream) {
    const peer::v1::RankMessage hello = FakeLeader::Hear(stream);
    EXPECT_EQ(hello.hello().rank(), 1);
    EXPECT_EQ(hello.hello().build(), "1.0");
    FakeLeader::Welcome(stream, 4);
    peer::v1::LeaderMessage ping;
    ping.mutable_ping()->set_leader_nanos(77);
    stream->Write(ping);
    const peer::v1::Pong pong = FakeLeader::Hear(stream).pong();
    if (pong.leader_nanos() == 77 && pong.rank_nanos() == world.clock.NowNanos() && pong.received_size() == 1 &&
        pong.received(0).bytes() == 101) {
      world.events.Add("pong");
    }
    FakeLeader::Hear(stream);  // until the rank has gone
  });
  RankProcess rank(&world, 1, leader.address());
  ASSERT_TRUE(world.events.Await("pong"));
  EXPECT_TRUE(rank.link().status().ok());
  world.clock.Advance(absl::Milliseconds(4999));
  world.timers.SettleForTest();
  EXPECT_TRUE(rank.link().status().ok());
  world.clock.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(world.events.Await("1 leader lost RANK_LOST"));
  EXPECT_TRUE(world.AwaitTries("pong"));  // it tries again
}

TEST(LeaderLink, LeavesALeaderThatItCanNotFollow) {
  const auto prepare = [](FakeLeader::Stream* stream, const std::string& key, uint32_t epoch) {
    peer::v1::LeaderMessage message;
    message.mutable_prepare()->mutable_group()->set_key(key);
    message.mutable_prepare()->mutable_group()->set_epoch(epoch);
    stream->Write(message);
  };
  struct Row {
    const char* reason;
    const char* problem;
    std::function<void(FakeLeader::Stream*)> script;
  };
  const Row rows[] = {
      {"LEADER_STALE", "the leader has the epoch 3, and one with 4 was followed since",
       [](FakeLeader::Stream* stream) { FakeLeader::Welcome(stream, 3); }},
      {"RANK_MESSAGE", "welcome.peer_timeout_micros: must be above 0, got 0",
       [](FakeLeader::Stream* stream) { FakeLeader::Welcome(stream, 4, 0); }},
      {"RANK_MESSAGE", "welcome.peer_timeout_micros: must be at most a year, got 9223372036854775807",
       [](FakeLeader::Stream* stream) { FakeLeader::Welcome(stream, 4, std::numeric_limits<int64_t>::max()); }},
      {"RANK_MESSAGE", "message: must be a welcome, got another one",
       [](FakeLeader::Stream* stream) { stream->Write(peer::v1::LeaderMessage()); }},
      {"RANK_MESSAGE", "message: must be a command, got a second welcome",
       [](FakeLeader::Stream* stream) {
         FakeLeader::Welcome(stream, 4);
         FakeLeader::Welcome(stream, 4);
       }},
      {"RANK_MESSAGE", "message: must be a command, got nothing that is known",
       [](FakeLeader::Stream* stream) {
         FakeLeader::Welcome(stream, 4);
         stream->Write(peer::v1::LeaderMessage());
       }},
      {"RANK_MESSAGE", "group.epoch: must be that of the leader, 5, got 4",
       [&](FakeLeader::Stream* stream) {
         FakeLeader::Welcome(stream, 5);
         prepare(stream, std::string(16, 'k'), 4);
       }},
      {"RANK_MESSAGE", "group.key: must have 16 bytes, got 3 bytes",
       [&](FakeLeader::Stream* stream) {
         FakeLeader::Welcome(stream, 4);
         prepare(stream, "key", 4);
       }},
  };
  for (const Row& row : rows) {
    World world;
    FakeLeader leader([&](FakeLeader::Stream* stream) {
      EXPECT_EQ(FakeLeader::Hear(stream).hello().followed_epoch(), 4);
      row.script(stream);
      FakeLeader::Hear(stream);  // until the rank has gone
    });
    RankProcess rank(&world, 1, leader.address(), 4);
    // The clock stands still, so that it does not come back.
    for (int i = 0; i < 1000 && ReasonOf(rank.link().status()) != row.reason; ++i) {
      world.events.Await("never", absl::Milliseconds(5));
    }
    EXPECT_EQ(rank.link().status().message(), row.problem);
  }
}

// Waits until the link has ended with that reason; the clock stands still, so that it tries once.
absl::Status EndOf(World* world, RankProcess* rank, const std::string& part) {
  for (int i = 0; i < 4000 && !absl::StrContains(rank->link().status().message(), part); ++i) {
    world->events.Await("never", absl::Milliseconds(5));
  }
  return rank->link().status();
}

TEST(LeaderLink, SaysWhatListensInTheLeadersStead) {
  World world;
  int port = 0;
  grpc::ServerBuilder builder;
  peer::v1::GroupService::Service without_methods;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&without_methods);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  RankProcess rank(&world, 1, absl::StrCat("127.0.0.1:", port));
  const absl::Status end = EndOf(&world, &rank, "leads no ranks");
  EXPECT_EQ(ReasonOf(end), "RANK_LOST");
  EXPECT_EQ(end.message(), "the leader can't be reached: what listens there leads no ranks: UNIMPLEMENTED ");
}

TEST(LeaderLink, TellsTheReasonThatAMessageBeginsWith) {
  const std::pair<grpc::Status, absl::Status> rows[] = {
      {{grpc::StatusCode::UNAUTHENTICATED, "CREDENTIAL_INVALID: nobody knows it"},
       Error(absl::StatusCode::kUnauthenticated, "CREDENTIAL_INVALID", "nobody knows it")},
      {{grpc::StatusCode::UNAUTHENTICATED, "go away: now"},
       Error(absl::StatusCode::kUnavailable, "RANK_LOST", "the leader can't be reached: UNAUTHENTICATED go away: now")},
  };
  for (const auto& [said, told] : rows) {
    World world;
    FakeLeader leader([](FakeLeader::Stream*) {}, said);
    RankProcess rank(&world, 1, leader.address());
    const absl::Status end = EndOf(&world, &rank, std::string(told.message()));
    EXPECT_EQ(end.message(), told.message());
    EXPECT_EQ(ReasonOf(end), ReasonOf(told));
    EXPECT_EQ(end.code(), told.code());
  }
}

TEST(LeaderLink, TriesANameAgainThatDoesNotResolve) {
  World world;
  RankProcess rank(&world, 1, "no-such-host.invalid:8475");
  const absl::Status end = EndOf(&world, &rank, "no-such-host.invalid");
  EXPECT_EQ(ReasonOf(end), "RANK_LOST");
  EXPECT_TRUE(absl::StrContains(end.message(), "no-such-host.invalid")) << end;
}

TEST(LeaderLink, TriesAgainMoreAndMoreRarelyUntilItIsWelcome) {
  World world;
  std::atomic<bool> welcomes = false;
  FakeLeader leader([&](FakeLeader::Stream* stream) {
    if (welcomes) FakeLeader::Welcome(stream, 4);
    world.events.Add("tried");
  });
  RankProcess rank(&world, 1, leader.address());
  const absl::Time begin = world.clock.WallNow();
  for (int tries = 0; tries < 14; ++tries) ASSERT_TRUE(world.AwaitTries("tried"));
  EXPECT_LT(world.clock.WallNow() - begin, absl::Seconds(400)) << "each two seconds at last; doubled, it were 1638";
  welcomes = true;
  ASSERT_TRUE(world.AwaitTries("tried"));
  ASSERT_TRUE(world.events.Await("1 leader lost RANK_LOST"));
  bool tries = false;
  for (int i = 0; i < 5 && !tries; ++i) {  // the loss is told before the next try is planned
    world.clock.Advance(absl::Milliseconds(100));
    tries = world.events.Await("tried", absl::Seconds(1));
  }
  EXPECT_TRUE(tries);
}

TEST(LeaderLink, WaitsForALeaderThatIsNotThereYet) {
  World world;
  world.size = 1;
  int port = 0;
  { port = Leader(&world, 1).port(); }
  RankProcess rank(&world, 0, absl::StrCat("127.0.0.1:", port));
  for (int i = 0; i < 3; ++i) {
    world.clock.Advance(absl::Seconds(2));
    world.timers.SettleForTest();
  }
  EXPECT_EQ(ReasonOf(rank.link().status()), "RANK_LOST");
  Leader leader(&world, 2, port);
  EXPECT_TRUE(world.AwaitTries("formed 2.1 of 1"));
}

}  // namespace
}  // namespace penstock::testing
