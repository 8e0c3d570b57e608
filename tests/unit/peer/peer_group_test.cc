// Ranks and their leader over real streams, on the loopback: they form, lose each other and form again. Strangers and
// leaders of yesterday are refused.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "penstock/peer/v1/group_service.grpc.pb.h"
#include "server/peer/group_convert.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/method_roles.h"
#include "tests/unit/peer/group_world.h"

namespace penstock::testing {
namespace {

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
    EXPECT_TRUE(world.events.Await(absl::StrCat(rank, " dissolve 1 for -1: took nothing")));
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
  *message.mutable_hello() = ToProto(Describe(world, 2));
  message.mutable_hello()->set_host("a\x1b[2Jb");
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "RANK_MESSAGE");
  message.mutable_hello()->set_host(std::string(256, 'a'));
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "RANK_MESSAGE");
  *message.mutable_hello() = ToProto(Describe(world, 2));
  message.mutable_hello()->set_build("1.1\x1b[2J");
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "RANK_MESSAGE");
  message.mutable_hello()->set_protocol(kPeerProtocol + 1);
  EXPECT_EQ(ReasonIn(SayBytes(leader.address(), message.SerializeAsString())), "PROTOCOL_MISMATCH");
  {
    HandMadeRank taker(leader.address());
    taker.SayHello(Describe(world, 1));
    const grpc::Status end = taker.End();
    EXPECT_EQ(ReasonIn(end), "RANK_TAKEN");
    EXPECT_EQ(end.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  }
  EXPECT_EQ(leader.refused(), 10);
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
  EXPECT_EQ(leader.refused(), 1);
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

TEST(PeerGroup, ALeaderKnowsWhatItsRanksSayAndLosesOneThatLies) {
  World world{.peer_timeout = absl::Seconds(5), .size = 2};
  Leader leader(&world, 1);
  HandMadeRank rank(leader.address());
  RankDescription self = Describe(world, 1);
  self.host = "far";
  self.devices = {{.name = "cpu:0", .memory_bytes = 5}};
  rank.SayHello(self);
  EXPECT_TRUE(rank.Hear().has_welcome());
  RankView one = leader.view().ranks.at(Rank(1));
  EXPECT_TRUE(one.member);
  EXPECT_EQ(one.description.host, "far");
  EXPECT_EQ(one.description.address, "127.0.0.1");
  EXPECT_EQ(one.description.devices.at(0).memory_bytes, 5);
  EXPECT_FALSE(one.clock.has_value());
  world.clock.Advance(absl::Seconds(2));
  peer::v1::LeaderMessage ping = rank.Hear();
  ASSERT_TRUE(ping.has_ping());
  peer::v1::RankMessage message;
  message.mutable_pong()->set_leader_nanos(ping.ping().leader_nanos());
  message.mutable_pong()->set_rank_nanos(ping.ping().leader_nanos() + 1000);
  peer::v1::Pong::Received* received = message.mutable_pong()->add_received();
  received->set_messages(3);
  received->set_bytes(300);
  rank.Say(message);
  rank.Say(message);  // again, which can't be
  EXPECT_EQ(ReasonIn(rank.End()), "RANK_MESSAGE");
  EXPECT_TRUE(world.events.Await("lost 1 RANK_LOST"));
  one = leader.view().ranks.at(Rank(1));
  EXPECT_FALSE(one.member);
  EXPECT_EQ(one.received.at(Rank(0)).bytes, 300);
}

TEST(PeerGroup, ALeaderLosesWhoIsSilent) {
  World world{.peer_timeout = absl::Seconds(5), .size = 2};
  Leader leader(&world, 1);
  HandMadeRank zero(leader.address());  // that the leader would not lose
  zero.SayHello(Describe(world, 0));
  EXPECT_TRUE(zero.Hear().has_welcome());
  HandMadeRank rank(leader.address());
  rank.SayHello(Describe(world, 1));
  EXPECT_TRUE(rank.Hear().has_welcome());
  const peer::v1::LeaderMessage prepare = rank.Hear();
  ASSERT_TRUE(prepare.has_prepare());
  world.clock.Advance(absl::Seconds(4));
  const peer::v1::LeaderMessage ping = rank.Hear();
  ASSERT_TRUE(ping.has_ping());
  peer::v1::RankMessage message;
  message.mutable_pong()->set_leader_nanos(ping.ping().leader_nanos());
  rank.Say(message);
  *message.mutable_prepared()->mutable_group() = prepare.prepare().group();
  zero.Say(message);
  rank.Say(message);
  EXPECT_TRUE(rank.Hear().has_form());  // so the leader has the pong, too
  world.clock.Advance(absl::Seconds(4));
  EXPECT_TRUE(rank.Hear().has_ping());
  world.timers.SettleForTest();
  EXPECT_EQ(world.events.Take(), std::vector<std::string>());
  world.clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(world.events.Await("lost 1 RANK_LOST"));
  const grpc::Status end = rank.End();
  EXPECT_EQ(ReasonIn(end), "RANK_LOST");
  EXPECT_EQ(end.error_message(), "rank 1 was silent for 5s");
}

// For longer than the time after which a silent stream is cut off.
TEST(PeerGroup, WhoIsHeardIsNotCutOff) {
  World world{.peer_timeout = absl::Seconds(5), .size = 2};
  Leader leader(&world, 1);
  HandMadeRank rank(leader.address());
  rank.SayHello(Describe(world, 1));
  EXPECT_TRUE(rank.Hear().has_welcome());
  for (int i = 0; i < 5; ++i) {
    world.clock.Advance(absl::Seconds(4));
    const peer::v1::LeaderMessage ping = rank.Hear();
    ASSERT_TRUE(ping.has_ping()) << i;
    peer::v1::RankMessage message;
    message.mutable_pong()->set_leader_nanos(ping.ping().leader_nanos());
    rank.Say(message);
    message.mutable_part()->set_data("here");
    rank.Say(message);
    ASSERT_TRUE(world.events.Await("told by 1: here"));
  }
  EXPECT_EQ(world.events.Take(), std::vector<std::string>());
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

}  // namespace
}  // namespace penstock::testing
