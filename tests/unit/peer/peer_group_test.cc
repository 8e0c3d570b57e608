// Ranks and their leader over real streams, on the loopback: they form, lose each other and form again. Strangers and
// leaders of yesterday are refused.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "penstock/peer/v1/group_service.grpc.pb.h"
#include "server/identity/authenticator.h"
#include "server/peer/group_convert.h"
#include "server/peer/group_service.h"
#include "server/peer/leader_link.h"
#include "server/peer/membership.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/method_roles.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

constexpr absl::Duration kPatience =
    absl::Seconds(20);  // of tests, on the machine's clock; no test needs to wait so long

// What has happened, in words, for those who wait for it.
class Events {
 public:
  void Add(std::string event) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    events_.push_back(std::move(event));
  }
  // Waits until an event has happened; it is told once.
  bool Await(const std::string& event, absl::Duration patience = kPatience) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return std::find(events_.begin(), events_.end(), event) != events_.end();
    };
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), patience)) return false;
    events_.erase(std::find(events_.begin(), events_.end(), event));
    return true;
  }
  std::vector<std::string> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(events_, {});
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
};

struct World {
  // Longer than any test advances the clock, but where it is about silence.
  absl::Duration peer_timeout = absl::Hours(1000);
  int size = 3;
  FakeClock clock = FakeClock();
  TimerQueue timers = TimerQueue(&clock);
  Events events = Events();

  // Waits for what needs another try of somebody, which the clock brings about.
  bool AwaitTries(const std::function<bool(absl::Duration patience)>& happens) {
    for (int i = 0; i < 1000; ++i) {
      if (happens(absl::Milliseconds(20))) return true;
      clock.Advance(absl::Seconds(2));
      timers.SettleForTest();
    }
    return false;
  }
  bool AwaitTries(const std::string& event) {
    return AwaitTries([&](absl::Duration patience) { return events.Await(event, patience); });
  }
};

RankDescription Describe(const World& world, int rank, int followed = 0) {
  return {.build = "1.0",
          .rank = Rank(rank),
          .world_size = world.size,
          .instance = RandomKey(),
          .followed = Epoch(followed)};
}

// A leader's process.
class Leader : public MembershipListener {
 public:
  Leader(World* world, int epoch, int port = 0, Role role = Role::kAdmin)
      : world_(world),
        authenticator_({.role = role}, &world->clock),
        membership_({.epoch = Epoch(epoch),
                     .world_size = world->size,
                     .build = "1.0",
                     .peer_timeout = world->peer_timeout,
                     .clock = &world->clock},
                    this),
        service_(&authenticator_, &membership_, &world->timers, &world->clock) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    service_.Start();
  }
  ~Leader() override {
    membership_.Close();
    server_->Shutdown();
    service_.Close();
  }

  void OnFormed(const Group& group, const std::map<Rank, RankDescription>& ranks) override {
    world_->events.Add(
        absl::StrCat("formed ", group.identity.epoch.value(), ".", group.identity.generation, " of ", ranks.size()));
  }
  void OnLost(Rank rank, const absl::Status& why) override {
    world_->events.Add(absl::StrCat("lost ", rank.value(), " ", ReasonOf(why)));
  }
  void OnFailed(Rank rank, const absl::Status& why) override {
    world_->events.Add(absl::StrCat("failed ", rank.value(), " ", ReasonOf(why)));
  }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int64_t refused() const { return membership_.refused(); }

 private:
  World* const world_;
  const Authenticator authenticator_;
  Membership membership_;
  GroupServiceImpl service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Another rank's process, which does what its leader says.
class RankProcess : public RankHandler {
 public:
  RankProcess(World* world, int rank, const std::string& leader, int followed = 0)
      : world_(world),
        rank_(rank),
        link_({.self = Describe(*world, rank, followed),
               .leader = leader,
               .credentials = grpc::InsecureChannelCredentials,
               .peer_timeout = world->peer_timeout,
               .clock = &world->clock},
              &world->timers, this) {
    link_.Start();
  }
  ~RankProcess() override { link_.Close(); }

  void OnPrepare(const GroupIdentity& group) override {
    link_.Prepared(group, absl::StrCat(rank_, " in ", group.generation));
  }
  void OnForm(const Group& group) override {
    {
      absl::MutexLock lock(&mu_);
      group_ = group;
    }
    link_.Formed(group.identity);
  }
  void OnDissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) override {
    Tell(absl::StrCat("dissolve ", group.generation, " for ", cause.value(), ": ", std::string(why.message())));
  }
  void OnLeaderLost(const absl::Status& why) override { Tell("leader lost " + ReasonOf(why)); }

  Group group() const {
    absl::MutexLock lock(&mu_);
    return group_;
  }
  LeaderLink& link() { return link_; }
  // Waits until its link has ended with this reason.
  bool AwaitEnd(const std::string& reason) {
    return world_->AwaitTries([&](absl::Duration patience) {
      return ReasonOf(link_.status()) == reason || (world_->events.Await("never", patience), false);
    });
  }

 private:
  void Tell(const std::string& event) { world_->events.Add(absl::StrCat(rank_, " ", event)); }

  World* const world_;
  const int rank_;
  mutable absl::Mutex mu_;
  Group group_ ABSL_GUARDED_BY(mu_);
  LeaderLink link_;
};

// A rank's end of a stream, word by word.
class HandMadeRank {
 public:
  explicit HandMadeRank(const std::string& leader)
      : stub_(peer::v1::GroupService::NewStub(grpc::CreateChannel(leader, grpc::InsecureChannelCredentials()))),
        stream_(Join()) {}
  ~HandMadeRank() { context_.TryCancel(); }

  void Say(const peer::v1::RankMessage& message) { stream_->Write(message); }
  void SayHello(const RankDescription& rank) {
    peer::v1::RankMessage message;
    *message.mutable_hello() = ToProto(rank);
    Say(message);
  }
  // The next message; one without a kind when there is none.
  peer::v1::LeaderMessage Hear() {
    peer::v1::LeaderMessage message;
    if (!stream_->Read(&message)) message.Clear();
    return message;
  }
  // How the leader ends the stream.
  grpc::Status End() {
    while (Hear().kind_case() != peer::v1::LeaderMessage::KIND_NOT_SET) {
    }
    return stream_->Finish();
  }

 private:
  using Stream = grpc::ClientReaderWriter<peer::v1::RankMessage, peer::v1::LeaderMessage>;

  std::unique_ptr<Stream> Join() {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    return stub_->Join(&context_);
  }

  grpc::ClientContext context_;
  const std::unique_ptr<peer::v1::GroupService::Stub> stub_;
  const std::unique_ptr<Stream> stream_;
};

// How a leader ends a stream whose first message has these bytes.
grpc::Status SayBytes(const std::string& leader, const std::string& bytes) {
  grpc::GenericStub stub(grpc::CreateChannel(leader, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  };
  const auto call = stub.PrepareCall(&context, "/penstock.peer.v1.GroupService/Join", &queue);
  call->StartCall(nullptr);
  await();
  const grpc::Slice slice(bytes);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  await();
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  return status;
}

TEST(PeerGroup, EveryMethodHasARole) {
  const absl::Status checked = CheckMethodRoles({peer::v1::GroupService::service_full_name()});
  EXPECT_TRUE(checked.ok()) << checked;
}

TEST(PeerGroup, RanksFormAGroupAndFormItAgainWhenOneComesBack) {
  World world;
  Leader leader(&world, 1);
  RankProcess zero(&world, 0, leader.address());
  RankProcess one(&world, 1, leader.address());
  auto two = std::make_unique<RankProcess>(&world, 2, leader.address());
  ASSERT_TRUE(world.events.Await("formed 1.1 of 3"));
  const Group first = one.group();
  EXPECT_EQ(first.carrier_addresses,
            (std::map<Rank, std::string>{{Rank(0), "0 in 1"}, {Rank(1), "1 in 1"}, {Rank(2), "2 in 1"}}));
  EXPECT_EQ(two->group().identity, first.identity);
  EXPECT_TRUE(one.link().status().ok());

  two.reset();
  ASSERT_TRUE(world.events.Await("lost 2 RANK_LOST"));
  for (const char* rank : {"0", "1"}) {
    EXPECT_TRUE(world.events.Await(absl::StrCat(rank, " dissolve 1 for 2: rank 2 has left: its stream has ended")));
  }
  EXPECT_TRUE(one.link().status().ok());  // the others stay

  two = std::make_unique<RankProcess>(&world, 2, leader.address());
  ASSERT_TRUE(world.events.Await("formed 1.2 of 3"));
  const Group second = one.group();
  EXPECT_NE(second.identity.key, first.identity.key);
  EXPECT_EQ(second.carrier_addresses.at(Rank(0)), "0 in 2");
  EXPECT_EQ(two->group().identity, second.identity);
  EXPECT_EQ(world.events.Take(), std::vector<std::string>());
}

TEST(PeerGroup, AFailureOfOneRankEndsTheGenerationForAll) {
  World world;
  Leader leader(&world, 1);
  RankProcess zero(&world, 0, leader.address());
  RankProcess one(&world, 1, leader.address());
  RankProcess two(&world, 2, leader.address());
  ASSERT_TRUE(world.events.Await("formed 1.1 of 3"));
  one.link().Failed(one.group().identity, Error(absl::StatusCode::kInternal, "EDGE_STALLED", "took nothing"));
  EXPECT_TRUE(world.events.Await("failed 1 EDGE_STALLED"));
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_TRUE(world.events.Await(absl::StrCat(rank, " dissolve 1 for 1: took nothing")));
  }
  EXPECT_TRUE(world.AwaitTries("formed 1.2 of 3"));
}

TEST(PeerGroup, StrangersAreRefusedAndDisturbNobody) {
  World world;
  Leader leader(&world, 1);
  RankProcess zero(&world, 0, leader.address());
  RankProcess one(&world, 1, leader.address());
  RankProcess two(&world, 2, leader.address());
  ASSERT_TRUE(world.events.Await("formed 1.1 of 3"));

  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), "GET / HTTP/1.1")), "FIELD_INVALID");
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), "")), "STREAM_PROTOCOL");
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), std::string(100'000, 'x'))), "MESSAGE_TOO_LARGE");
  peer::v1::RankMessage message;
  message.mutable_pong();
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "STREAM_PROTOCOL");
  *message.mutable_hello() = ToProto(Describe(world, 2));
  message.mutable_hello()->set_instance("short");
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "RANK_MESSAGE");
  message.mutable_hello()->set_protocol(2);
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "PROTOCOL_MISMATCH");
  {
    HandMadeRank taker(leader.address());
    taker.SayHello(Describe(world, 1));
    const grpc::Status end = taker.End();
    EXPECT_EQ(ReasonIn(end), "RANK_TAKEN");
    EXPECT_EQ(end.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  }
  EXPECT_EQ(leader.refused(), 7);
  EXPECT_EQ(world.events.Take(), std::vector<std::string>());
  EXPECT_TRUE(one.link().status().ok());
}

TEST(PeerGroup, ARankHearsWhyItIsRefused) {
  World world;
  world.size = 2;
  Leader leader(&world, 1);
  RankProcess one(&world, 1, leader.address());
  RankProcess another(&world, 1, leader.address());
  const auto refused = [](RankProcess& rank) { return ReasonOf(rank.link().status()) == "RANK_TAKEN"; };
  EXPECT_TRUE(world.AwaitTries([&](absl::Duration patience) {
    return refused(one) || refused(another) || (world.events.Await("never", patience), false);
  }));
  EXPECT_NE(refused(one), refused(another));
}

TEST(PeerGroup, NobodyJoinsWithoutTheRole) {
  World world;
  Leader leader(&world, 1, 0, Role::kTrain);
  HandMadeRank rank(leader.address());
  rank.SayHello(Describe(world, 1));
  const grpc::Status end = rank.End();
  EXPECT_EQ(ReasonIn(end), "ROLE_MISSING");
  EXPECT_EQ(end.error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(PeerGroup, AMemberThatTalksNonsenseIsLostAlone) {
  World world;
  world.size = 2;
  Leader leader(&world, 1);
  RankProcess zero(&world, 0, leader.address());
  HandMadeRank one(leader.address());
  one.SayHello(Describe(world, 1));
  EXPECT_TRUE(one.Hear().has_welcome());
  EXPECT_TRUE(one.Hear().has_prepare());
  one.SayHello(Describe(world, 1));
  EXPECT_EQ(ReasonIn(one.End()), "STREAM_PROTOCOL");
  EXPECT_TRUE(world.events.Await("lost 1 RANK_LOST"));
  EXPECT_TRUE(world.events.Await("0 dissolve 1 for 1: rank 1 has left: message: must be a report, got a second hello"));
  EXPECT_TRUE(zero.link().status().ok());
}

TEST(PeerGroup, AProcessThatJoinsAgainEndsItsOldStream) {
  World world;
  Leader leader(&world, 1);
  const RankDescription rank = Describe(world, 1);
  HandMadeRank before(leader.address());
  before.SayHello(rank);
  EXPECT_TRUE(before.Hear().has_welcome());
  HandMadeRank after(leader.address());
  after.SayHello(rank);
  EXPECT_TRUE(after.Hear().has_welcome());
  EXPECT_EQ(ReasonIn(before.End()), "RANK_LOST");
  EXPECT_TRUE(world.events.Await("lost 1 RANK_LOST"));
}

TEST(PeerGroup, RanksFollowTheirLeaderThroughARestartAndNoneOfYesterday) {
  World world;
  auto leader = std::make_unique<Leader>(&world, 1);
  const int port = leader->port();
  RankProcess zero(&world, 0, leader->address());
  RankProcess one(&world, 1, leader->address());
  RankProcess two(&world, 2, leader->address());
  ASSERT_TRUE(world.events.Await("formed 1.1 of 3"));

  leader.reset();
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_TRUE(world.events.Await(absl::StrCat(rank, " leader lost DRAINING")));
  }
  leader = std::make_unique<Leader>(&world, 2, port);
  ASSERT_EQ(leader->port(), port);
  ASSERT_TRUE(world.AwaitTries("formed 2.1 of 3"));
  EXPECT_EQ(one.group().identity.epoch, Epoch(2));

  leader.reset();
  leader = std::make_unique<Leader>(&world, 1, port);
  ASSERT_EQ(leader->port(), port);
  EXPECT_TRUE(one.AwaitEnd("LEADER_STALE"));
  EXPECT_GE(leader->refused(), 1);
}

TEST(PeerGroup, ALeaderLosesWhoIsSilent) {
  World world{.peer_timeout = absl::Seconds(5), .size = 1};
  Leader leader(&world, 1);
  HandMadeRank rank(leader.address());
  rank.SayHello(Describe(world, 0));
  EXPECT_TRUE(rank.Hear().has_welcome());
  const peer::v1::LeaderMessage prepare = rank.Hear();
  ASSERT_TRUE(prepare.has_prepare());
  world.clock.Advance(absl::Seconds(4));
  EXPECT_TRUE(rank.Hear().has_ping());
  peer::v1::RankMessage message;
  message.mutable_pong();
  rank.Say(message);
  *message.mutable_prepared()->mutable_group() = prepare.prepare().group();
  rank.Say(message);
  EXPECT_TRUE(rank.Hear().has_form());  // so the leader has the pong, too
  world.clock.Advance(absl::Seconds(4));
  EXPECT_TRUE(rank.Hear().has_ping());
  world.timers.SettleForTest();
  EXPECT_EQ(world.events.Take(), std::vector<std::string>());
  world.clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(world.events.Await("lost 0 RANK_LOST"));
  const grpc::Status end = rank.End();
  EXPECT_EQ(ReasonIn(end), "RANK_LOST");
  EXPECT_EQ(end.error_message(), "rank 0 was silent for 5s");
}

TEST(PeerGroup, WhoSaysNothingAtAllIsCutOff) {
  World world{.peer_timeout = absl::Seconds(5)};
  Leader leader(&world, 1);
  HandMadeRank rank(leader.address());
  const Thread end("silent", [&] {
    EXPECT_EQ(rank.End().error_code(), grpc::StatusCode::CANCELLED);
    world.events.Add("cut off");
  });
  EXPECT_TRUE(world.AwaitTries("cut off"));
}

// A leader that does what a test says.
class FakeLeader : public peer::v1::GroupService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<peer::v1::LeaderMessage, peer::v1::RankMessage>;

  explicit FakeLeader(std::function<void(Stream*)> script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeLeader() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  static peer::v1::RankMessage Hear(Stream* stream) {
    peer::v1::RankMessage message;
    if (!stream->Read(&message)) message.Clear();
    return message;
  }
  static void Welcome(Stream* stream, uint32_t epoch, int64_t timeout_micros = 5'000'000) {
    peer::v1::LeaderMessage message;
    message.mutable_welcome()->set_epoch(epoch);
    message.mutable_welcome()->set_peer_timeout_micros(timeout_micros);
    stream->Write(message);
  }

 private:
  grpc::Status Join(grpc::ServerContext*, Stream* stream) override {
    script_(stream);
    return grpc::Status::OK;
  }

  const std::function<void(Stream*)> script_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(LeaderLink, AnswersPingsAndLeavesALeaderThatIsSilent) {
  World world{.peer_timeout = absl::Seconds(5)};
  FakeLeader leader([&](FakeLeader::Stream* stream) {
    const peer::v1::RankMessage hello = FakeLeader::Hear(stream);
    EXPECT_EQ(hello.hello().rank(), 1);
    EXPECT_EQ(hello.hello().build(), "1.0");
    FakeLeader::Welcome(stream, 4);
    peer::v1::LeaderMessage ping;
    ping.mutable_ping();
    stream->Write(ping);
    if (FakeLeader::Hear(stream).has_pong()) world.events.Add("pong");
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
