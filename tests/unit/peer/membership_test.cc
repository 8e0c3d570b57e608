// Who may join, who is lost, and the generations that follow: without streams, on a clock that stands still.

#include "server/peer/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Told = std::vector<std::string>;

// Writes down what a member is told: "1 prepare 3" is rank 1, generation 3.
class FakeLine : public MemberLine {
 public:
  FakeLine(int rank, Told* told) : rank_(rank), told_(told) {}

  void Welcome(Epoch epoch, absl::Duration peer_timeout) override {
    Note(absl::StrCat("welcome to ", epoch.value(), " for ", absl::FormatDuration(peer_timeout)));
  }
  void Ping(int64_t leader_nanos) override {
    pinged_nanos_ = leader_nanos;
    Note("ping");
  }
  void Prepare(const GroupIdentity& group) override {
    group_ = group;
    Note(absl::StrCat("prepare ", group.generation));
  }
  void Form(const Group& group) override {
    formed_ = group;
    Note(absl::StrCat("form ", group.identity.generation));
  }
  void Dissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) override {
    Note(absl::StrCat("dissolve ", group.generation, " for ", cause.value(), " ", ReasonOf(why)));
  }
  void Draining(bool draining) override { Note(draining ? "draining" : "goes on"); }
  void Tell(std::vector<MessagePart> parts) override { Note(absl::StrCat("message of ", parts.size(), " parts")); }
  void End(const absl::Status& why) override { Note("end " + ReasonOf(why)); }

  const GroupIdentity& group() const { return group_; }
  const Group& formed() const { return formed_; }
  int64_t pinged_nanos() const { return pinged_nanos_; }

 private:
  void Note(const std::string& what) { told_->push_back(absl::StrCat(rank_, " ", what)); }

  const int rank_;
  Told* const told_;
  GroupIdentity group_;
  Group formed_;
  int64_t pinged_nanos_ = 0;
};

std::array<char, 16> Sixteen(char c) {
  std::array<char, 16> bytes;
  bytes.fill(c);
  return bytes;
}

class MembershipTest : public ::testing::Test, public MembershipListener {
 protected:
  static constexpr int kWorldSize = 3;
  static constexpr char kNonsense[] = "nonsense";

  void OnFormed(const Group& group, const std::map<Rank, FormedRank>& ranks) override {
    told_.push_back(absl::StrCat("formed ", group.identity.generation, " of ", ranks.size()));
    if (on_formed_) on_formed_();
  }
  void OnLost(Rank rank, const absl::Status& why) override {
    told_.push_back(absl::StrCat("lost ", rank.value(), " ", ReasonOf(why)));
    last_error_ = std::string(why.message());
  }
  void OnFailed(Rank rank, const GroupIdentity& group, const absl::Status& why) override {
    told_.push_back(absl::StrCat("failed ", rank.value(), " in ", group.generation, " ", ReasonOf(why)));
  }
  absl::Status OnTold(Rank rank, MessagePart part) override {
    told_.push_back(absl::StrCat("told by ", rank.value(), ": ", part.data));
    return part.data == kNonsense ? absl::InvalidArgumentError("it talks nonsense") : absl::OkStatus();
  }

  static RankDescription Describe(int rank, char instance = 'a') {
    return {.build = "1.0",
            .rank = Rank(rank),
            .world_size = kWorldSize,
            .instance = Sixteen(instance),
            .followed = Epoch(7),
            .instructions = "AVX2",
            .carrier = "ucx"};
  }

  absl::Status Join(int rank, char instance = 'a') {
    const auto line = std::make_shared<FakeLine>(rank, &told_);
    const auto id = membership_.Join(Describe(rank, instance), line);
    if (!id.ok()) return id.status();
    ids_[rank] = *id;
    lines_[rank] = line;
    return absl::OkStatus();
  }
  void JoinAll() {
    for (int rank = 0; rank < kWorldSize; ++rank) ASSERT_TRUE(Join(rank).ok());
  }
  void PrepareAll() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      membership_.Prepared(ids_[rank], lines_[rank]->group(), absl::StrCat("at ", rank));
    }
  }
  void FormAll() {
    for (int rank = 0; rank < kWorldSize; ++rank) membership_.Formed(ids_[rank], lines_[rank]->group());
  }
  void Complete() {
    JoinAll();
    PrepareAll();
    FormAll();
    told_.clear();
  }
  void HearAll() {
    for (const auto& [rank, id] : ids_) membership_.Heard(id);
  }
  // All are heard, and looked at, each second.
  void LiveFor(absl::Duration time) {
    for (const int64_t end = clock_.NowNanos() + absl::ToInt64Nanoseconds(time); clock_.NowNanos() < end;) {
      clock_.Advance(absl::Seconds(1));
      HearAll();
      membership_.Look();
    }
  }
  Told Take() { return std::exchange(told_, {}); }

  FakeClock clock_;
  char next_key_ = 'A';
  Told told_;
  std::string last_error_;
  std::function<void()> on_formed_;
  Membership membership_{{.epoch = Epoch(7),
                          .world_size = kWorldSize,
                          .build = "1.0",
                          .carrier = "ucx",
                          .instructions = "AVX2",
                          .clock = &clock_,
                          .new_key = [this] { return Sixteen(next_key_++); }},
                         this};
  std::map<int, MemberId> ids_;
  std::map<int, std::shared_ptr<FakeLine>> lines_;
};

TEST_F(MembershipTest, AGenerationBeginsWhenAllHaveJoinedAndIsCompleteWhenAllHaveFormed) {
  ASSERT_TRUE(Join(2).ok());
  ASSERT_TRUE(Join(0).ok());
  EXPECT_THAT(Take(), ElementsAre("2 welcome to 7 for 5s", "0 welcome to 7 for 5s"));
  ASSERT_TRUE(Join(1).ok());
  EXPECT_THAT(Take(), ElementsAre("1 welcome to 7 for 5s", "0 prepare 1", "1 prepare 1", "2 prepare 1"));
  EXPECT_EQ(lines_[0]->group().key, Sixteen('A'));
  EXPECT_EQ(lines_[0]->group().epoch, Epoch(7));
  membership_.Prepared(ids_[1], lines_[1]->group(), "at 1");
  membership_.Prepared(ids_[0], lines_[0]->group(), "at 0");
  EXPECT_THAT(Take(), IsEmpty());
  membership_.Prepared(ids_[2], lines_[2]->group(), "at 2");
  EXPECT_THAT(Take(), ElementsAre("0 form 1", "1 form 1", "2 form 1"));
  EXPECT_THAT(lines_[2]->formed().carrier_addresses,
              ElementsAre(std::pair(Rank(0), "at 0"), std::pair(Rank(1), "at 1"), std::pair(Rank(2), "at 2")));
  membership_.Formed(ids_[2], lines_[2]->group());
  membership_.Formed(ids_[2], lines_[2]->group());  // one rank can't answer for others
  membership_.Formed(ids_[0], lines_[0]->group());
  EXPECT_THAT(Take(), IsEmpty());
  membership_.Formed(ids_[1], lines_[1]->group());
  EXPECT_THAT(Take(), ElementsAre("formed 1 of 3"));
}

TEST_F(MembershipTest, WhoDoesNotFitIsRefusedByNameAndDisturbsNobody) {
  struct Row {
    const char* reason;
    absl::StatusCode code;
    const char* value;  // that the error names
    std::function<void(RankDescription&)> change;
  };
  const Row rows[] = {
      {"PROTOCOL_MISMATCH", absl::StatusCode::kFailedPrecondition, "got 99", [](auto& rank) { rank.protocol = 99; }},
      {"BUILD_MISMATCH", absl::StatusCode::kFailedPrecondition, "got 0.9", [](auto& rank) { rank.build = "0.9"; }},
      {"WORLD_SIZE_MISMATCH", absl::StatusCode::kInvalidArgument, "got 4", [](auto& rank) { rank.world_size = 4; }},
      {"CARRIER_MISMATCH", absl::StatusCode::kInvalidArgument, "got grpc", [](auto& rank) { rank.carrier = "grpc"; }},
      {"RANK_OUT_OF_RANGE", absl::StatusCode::kInvalidArgument, "[0, 2], got 3",
       [](auto& rank) { rank.rank = Rank(3); }},
      {"RANK_OUT_OF_RANGE", absl::StatusCode::kInvalidArgument, "got -1", [](auto& rank) { rank.rank = Rank(-1); }},
      {"LEADER_STALE", absl::StatusCode::kFailedPrecondition, "got 8", [](auto& rank) { rank.followed = Epoch(8); }},
      {"RANK_TAKEN", absl::StatusCode::kAlreadyExists, "rank 1", [](auto& rank) { rank.instance = Sixteen('b'); }},
  };
  Complete();
  for (const Row& row : rows) {
    RankDescription rank = Describe(1);
    row.change(rank);
    const absl::Status refused = membership_.Join(rank, std::make_shared<FakeLine>(9, &told_)).status();
    EXPECT_EQ(ReasonOf(refused), row.reason);
    EXPECT_EQ(refused.code(), row.code) << row.reason;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(row.value));
  }
  EXPECT_THAT(Take(), IsEmpty());
  EXPECT_EQ(membership_.refused(), std::size(rows));
}

TEST_F(MembershipTest, ALostMemberIsReportedOnceAndTheOthersGoOnWithItsSuccessor) {
  Complete();
  const GroupIdentity before = lines_[0]->group();
  membership_.Leave(ids_[1], absl::UnavailableError("its stream has ended"));
  EXPECT_THAT(Take(), ElementsAre("1 end RANK_LOST", "0 dissolve 1 for 1 RANK_LOST", "2 dissolve 1 for 1 RANK_LOST",
                                  "lost 1 RANK_LOST"));
  EXPECT_EQ(last_error_, "rank 1 has left: its stream has ended");
  membership_.Leave(ids_[1], absl::UnavailableError("again"));
  EXPECT_THAT(Take(), IsEmpty());
  ASSERT_TRUE(Join(1, 'b').ok());
  EXPECT_THAT(Take(), ElementsAre("1 welcome to 7 for 5s", "0 prepare 2", "1 prepare 2", "2 prepare 2"));
  EXPECT_NE(lines_[0]->group().key, before.key);
  PrepareAll();
  FormAll();
  EXPECT_EQ(Take().back(), "formed 2 of 3");
}

TEST_F(MembershipTest, ALossWhileItFormsBeginsAnew) {
  JoinAll();
  PrepareAll();
  membership_.Formed(ids_[0], lines_[0]->group());
  const GroupIdentity first = lines_[0]->group();
  Take();
  membership_.Leave(ids_[2], absl::UnavailableError("gone"));
  EXPECT_THAT(Take(), ElementsAre("2 end RANK_LOST", "0 dissolve 1 for 2 RANK_LOST", "1 dissolve 1 for 2 RANK_LOST",
                                  "lost 2 RANK_LOST"));
  ASSERT_TRUE(Join(2).ok());
  Take();
  // What was said of the first does not count for the second.
  membership_.Prepared(ids_[0], first, "old");
  membership_.Formed(ids_[0], first);
  membership_.Failed(ids_[0], first, absl::UnavailableError("old"));
  membership_.Formed(ids_[1], lines_[1]->group());
  EXPECT_THAT(Take(), ElementsAre("failed 0 in 1 "));
  PrepareAll();
  EXPECT_EQ(lines_[1]->formed().carrier_addresses.at(Rank(0)), "at 0");
  FormAll();
  EXPECT_EQ(Take().back(), "formed 2 of 3");
}

// Not all of a generation that ended early had answered: what those did is no answer in the next one.
TEST_F(MembershipTest, EachGenerationIsAnsweredByAll) {
  JoinAll();
  membership_.Prepared(ids_[0], lines_[0]->group(), "at 0");
  membership_.Leave(ids_[2], absl::UnavailableError("gone"));
  ASSERT_TRUE(Join(2).ok());
  Take();
  for (const int rank : {1, 2}) membership_.Prepared(ids_[rank], lines_[rank]->group(), absl::StrCat("at ", rank));
  EXPECT_THAT(Take(), IsEmpty());
  membership_.Prepared(ids_[0], lines_[0]->group(), "at 0");
  EXPECT_THAT(Take(), ElementsAre("0 form 2", "1 form 2", "2 form 2"));
}

TEST_F(MembershipTest, WhoIsSilentForTheTimeoutIsLostAndNotBefore) {
  Complete();
  EXPECT_EQ(membership_.Look(), clock_.NowNanos() + 1'000'000'000);
  clock_.Advance(absl::Seconds(1));
  membership_.Look();
  EXPECT_THAT(Take(), ElementsAre("0 ping", "1 ping", "2 ping"));
  membership_.Heard(ids_[0]);
  membership_.Heard(ids_[2]);
  clock_.Advance(absl::Seconds(3));
  membership_.Look();
  Take();
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_EQ(membership_.Look(), clock_.NowNanos() + 1'000'000);  // when rank 1 will have been silent for 5 s
  EXPECT_THAT(Take(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  membership_.Look();
  const Told told = Take();
  EXPECT_THAT(std::vector(told.begin(), told.begin() + 4),
              ElementsAre("1 end RANK_LOST", "0 dissolve 1 for 1 RANK_LOST", "2 dissolve 1 for 1 RANK_LOST",
                          "lost 1 RANK_LOST"));
  EXPECT_EQ(last_error_, "rank 1 was silent for 5s");
  // Its place is free now, for whoever comes.
  EXPECT_TRUE(Join(1, 'b').ok());
}

// Its process was stopped, say, and goes on.
TEST_F(MembershipTest, ALeaderThatStoodStillStaysAMemberOfItsGroup) {
  Complete();
  clock_.Advance(absl::Minutes(1));
  membership_.Look();
  EXPECT_THAT(Take(), ::testing::AllOf(::testing::Contains("lost 1 RANK_LOST"), ::testing::Contains("lost 2 RANK_LOST"),
                                       ::testing::Not(::testing::Contains("lost 0 RANK_LOST"))));
  ASSERT_TRUE(Join(1).ok());
  ASSERT_TRUE(Join(2).ok());
  EXPECT_EQ(Take().back(), "2 prepare 2");
}

TEST_F(MembershipTest, PipelinesOfEarlierGenerationsHearOfEveryLoss) {
  Complete();
  membership_.Leave(ids_[1], absl::UnavailableError("gone"));
  Take();
  membership_.Leave(ids_[2], absl::UnavailableError("gone, too"));
  EXPECT_THAT(Take(), ElementsAre("2 end RANK_LOST", "0 dissolve 1 for 2 RANK_LOST", "lost 2 RANK_LOST"));
}

TEST_F(MembershipTest, WhatFailedUnderAnEarlierLeaderIsNotOfThisOnesGenerations) {
  Complete();
  GroupIdentity before = lines_[2]->group();
  before.epoch = Epoch(6);
  membership_.Failed(ids_[2], before, Error(absl::StatusCode::kUnavailable, "RANK_LOST", "broken").With("rank", "1"));
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(MembershipTest, ALeaderThatHoldsUpAFormingBeginsItAgain) {
  JoinAll();
  for (const int rank : {1, 2}) membership_.Prepared(ids_[rank], lines_[rank]->group(), "there");
  LiveFor(Membership::kFormingTimeout);
  EXPECT_THAT(Take(), ::testing::AllOf(::testing::Contains("1 dissolve 1 for -1 RANK_LOST"),
                                       ::testing::Not(::testing::Contains("lost 0 RANK_LOST"))));
  LiveFor(Membership::kPause);
  EXPECT_THAT(Take(), ::testing::Contains("0 prepare 2"));
}

TEST_F(MembershipTest, WhoHoldsUpAFormingIsLost) {
  for (int rank = 0; rank < kWorldSize; ++rank) ASSERT_TRUE(Join(rank).ok());
  membership_.Prepared(ids_[0], lines_[0]->group(), "zero");
  membership_.Prepared(ids_[2], lines_[2]->group(), "two");
  LiveFor(Membership::kFormingTimeout - absl::Seconds(1));
  EXPECT_THAT(Take(), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
  LiveFor(absl::Seconds(1));
  EXPECT_THAT(Take(), ::testing::Contains("lost 1 RANK_LOST"));
  EXPECT_EQ(last_error_, "rank 1 has not done its part of the forming for 1m");
}

TEST_F(MembershipTest, WhatIsSaidOfPipelinesGoesThroughInOrder) {
  Complete();
  Take();
  membership_.Told(ids_[1], {.data = "a"});
  membership_.Told(ids_[2], {.data = "b"});
  membership_.Told(ids_[1], {.data = "c"});
  EXPECT_THAT(Take(), ElementsAre("told by 1: a", "told by 2: b", "told by 1: c"));
  membership_.Told(ids_[1], {.data = kNonsense});
  membership_.Told(ids_[1], {.data = "d"});
  EXPECT_THAT(Take(), ::testing::AllOf(::testing::Contains("lost 1 RANK_LOST"), ::testing::Contains("1 end RANK_LOST"),
                                       ::testing::Not(::testing::Contains("told by 1: d"))));
  EXPECT_EQ(last_error_, "rank 1 was given up: it talks nonsense");
}

TEST_F(MembershipTest, NonsenseOfAPastStayIsNotThePresentOnes) {
  JoinAll();
  PrepareAll();
  on_formed_ = [this] {  // what comes now is told behind this
    membership_.Told(ids_[1], {.data = kNonsense});
    membership_.Leave(ids_[1], absl::UnavailableError("the stream broke off"));
    EXPECT_TRUE(Join(1).ok());
  };
  FormAll();
  on_formed_ = nullptr;
  EXPECT_THAT(Take(), ::testing::Contains("told by 1: nonsense"));
  EXPECT_TRUE(membership_.view().ranks.at(Rank(1)).member);
  EXPECT_EQ(last_error_, "rank 1 has left: the stream broke off");
}

TEST_F(MembershipTest, AnEdgeThatFailsIsThePeersFaultNotTheReporters) {
  Complete();
  const auto why = Error(absl::StatusCode::kUnavailable, "RANK_LOST", "the edge has broken off").With("rank", "1");
  membership_.Failed(ids_[2], lines_[2]->group(), why);
  EXPECT_THAT(Take(), ElementsAre("0 dissolve 1 for 1 RANK_LOST", "1 dissolve 1 for 1 RANK_LOST",
                                  "2 dissolve 1 for 1 RANK_LOST", "failed 2 in 1 RANK_LOST"));
}

TEST_F(MembershipTest, AnEdgeOfAnEarlierGenerationFailsWithoutAWordToTheOthers) {
  Complete();
  const GroupIdentity first = lines_[2]->group();
  ASSERT_TRUE(Join(1).ok());
  PrepareAll();
  FormAll();
  Take();
  membership_.Failed(ids_[2], first, Error(absl::StatusCode::kUnavailable, "RANK_LOST", "broken").With("rank", "0"));
  EXPECT_THAT(Take(), ElementsAre("failed 2 in 1 RANK_LOST"));
  EXPECT_TRUE(membership_.IsComplete());
}

TEST_F(MembershipTest, WhoIsThereAndWhoComesHearsThatTheLeaderDrains) {
  ASSERT_TRUE(Join(1).ok());
  Take();
  membership_.Drain(true);
  EXPECT_THAT(Take(), ElementsAre("1 draining"));
  ASSERT_TRUE(Join(2).ok());
  EXPECT_THAT(Take(), ElementsAre("2 welcome to 7 for 5s", "2 draining"));
  membership_.Drain(false);
  EXPECT_THAT(Take(), ElementsAre("1 goes on", "2 goes on"));
}

TEST_F(MembershipTest, WhoIsHeardStays) {
  Complete();
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(absl::Seconds(4));
    HearAll();
    membership_.Look();
  }
  EXPECT_THAT(Take(), ::testing::Not(::testing::Contains(HasSubstr("lost"))));
}

TEST_F(MembershipTest, TheViewSaysWhyAMissingRankIsRefused) {
  ASSERT_TRUE(Join(0).ok());
  ASSERT_TRUE(Join(2).ok());
  for (const int number : {1, 2}) {
    RankDescription rank = Describe(number);
    rank.build = "0.9";
    EXPECT_FALSE(membership_.Join(rank, std::make_shared<FakeLine>(9, &told_)).ok());
  }
  GroupView view = membership_.view();
  EXPECT_EQ(ReasonOf(view.ranks[Rank(1)].problem), "BUILD_MISMATCH");
  EXPECT_TRUE(view.ranks[Rank(2)].problem.ok()) << "it is a member";
  ASSERT_TRUE(Join(1).ok());
  EXPECT_TRUE(membership_.view().ranks[Rank(1)].problem.ok());
}

TEST_F(MembershipTest, TheViewHasTheWholeWorldAndSinceWhen) {
  const absl::Time start = clock_.WallNow();
  clock_.Advance(absl::Seconds(10));
  ASSERT_TRUE(Join(0).ok());
  ASSERT_TRUE(Join(2).ok());
  GroupView view = membership_.view();
  EXPECT_FALSE(view.complete);
  EXPECT_EQ(view.epoch, Epoch(7));
  ASSERT_EQ(view.ranks.size(), 3u);
  EXPECT_TRUE(view.ranks[Rank(2)].member);
  EXPECT_EQ(view.ranks[Rank(2)].since, start + absl::Seconds(10));
  EXPECT_EQ(view.ranks[Rank(2)].description.instructions, "AVX2");
  EXPECT_FALSE(view.ranks[Rank(1)].member);
  EXPECT_EQ(view.ranks[Rank(1)].since, start);
  EXPECT_THAT(std::string(view.ranks[Rank(1)].problem.message()), HasSubstr("rank 1 has not joined yet"));

  ASSERT_TRUE(Join(1).ok());
  PrepareAll();
  FormAll();
  view = membership_.view();
  EXPECT_TRUE(view.complete);
  EXPECT_EQ(view.generation, 1u);
  EXPECT_EQ(view.reformings, 0) << "the first forming is none";

  clock_.Advance(absl::Seconds(5));
  membership_.Leave(ids_[1], absl::UnavailableError("cut"));
  membership_.Drain(true);
  view = membership_.view();
  EXPECT_FALSE(view.complete);
  EXPECT_TRUE(view.draining);
  EXPECT_FALSE(view.ranks[Rank(1)].member);
  EXPECT_EQ(view.ranks[Rank(1)].since, start + absl::Seconds(15));
  EXPECT_THAT(std::string(view.ranks[Rank(1)].problem.message()), HasSubstr("has left: cut"));
  ASSERT_TRUE(Join(1).ok());
  EXPECT_EQ(membership_.view().reformings, 0) << "before it is complete again";
  PrepareAll();
  FormAll();
  view = membership_.view();
  EXPECT_EQ(view.reformings, 1);
  EXPECT_EQ(view.generation, 2u);
  EXPECT_TRUE(view.ranks[Rank(1)].problem.ok());
}

TEST_F(MembershipTest, PongsTellClocksAndWhatHasComeByLinks) {
  Complete();
  clock_.Advance(absl::Seconds(1));
  membership_.Look();
  const int64_t sent = lines_[1]->pinged_nanos();
  EXPECT_EQ(sent, clock_.NowNanos());
  clock_.AdvanceNanos(200);
  const RankPong pong = {.leader_nanos = sent, .rank_nanos = sent + 5100, .received = {{Rank(0), {2, 64}}}};
  ASSERT_TRUE(membership_.Ponged(ids_[1], pong).ok());
  const RankView one = membership_.view().ranks[Rank(1)];
  EXPECT_EQ(one.clock->nanos, 5000);
  EXPECT_EQ(one.clock->uncertainty_nanos, 100);
  EXPECT_EQ(one.received.at(Rank(0)).messages, 2);
  EXPECT_EQ(one.received.at(Rank(0)).bytes, 64);
  EXPECT_FALSE(membership_.view().ranks[Rank(2)].clock.has_value());

  // One that has joined again is another process, perhaps on another host.
  ASSERT_TRUE(Join(1).ok());
  EXPECT_FALSE(membership_.view().ranks[Rank(1)].clock.has_value());
  EXPECT_THAT(membership_.view().ranks[Rank(1)].received, IsEmpty());
  EXPECT_TRUE(membership_.Ponged(MemberId(999), pong).ok()) << "of one that is no more";
}

TEST_F(MembershipTest, APongThatCanNotBeTrueIsAnError) {
  Complete();
  const auto ping = [&] {
    clock_.Advance(absl::Seconds(1));
    membership_.Look();
    return lines_[1]->pinged_nanos();
  };
  const auto reason = [&](int64_t nanos, std::map<Rank, LinkFigures> received) {
    return ReasonOf(
        membership_.Ponged(ids_[1], {.leader_nanos = nanos, .rank_nanos = 1, .received = std::move(received)}));
  };
  int64_t sent = ping();
  EXPECT_EQ(reason(sent + 1, {}), "RANK_MESSAGE") << "no such ping";
  EXPECT_EQ(reason(sent, {{Rank(1), {1, 1}}}), "RANK_MESSAGE") << "from itself";
  EXPECT_EQ(reason(sent, {{Rank(3), {1, 1}}}), "RANK_MESSAGE") << "from nobody";
  EXPECT_EQ(reason(sent, {{Rank(-1), {1, 1}}}), "RANK_MESSAGE");
  EXPECT_EQ(reason(sent, {{Rank(0), {-1, 1}}}), "RANK_MESSAGE");
  EXPECT_EQ(reason(sent, {{Rank(0), {1, -1}}}), "RANK_MESSAGE");
  EXPECT_THAT(membership_.view().ranks[Rank(1)].received, IsEmpty());
  EXPECT_FALSE(membership_.view().ranks[Rank(1)].clock.has_value());
  EXPECT_EQ(reason(sent, {{Rank(0), {2, 8}}}), "");
  EXPECT_EQ(reason(sent, {{Rank(0), {2, 8}}}), "RANK_MESSAGE") << "it was answered";
  sent = ping();
  EXPECT_EQ(reason(sent + 1, {}), "RANK_MESSAGE");
}

TEST_F(MembershipTest, OnlyTheLastThousandPingsHaveAnAnswer) {
  Complete();
  std::vector<int64_t> sent;
  for (int i = 0; i < 1001; ++i) {
    clock_.Advance(absl::Seconds(1));
    HearAll();
    membership_.Look();
    sent.push_back(lines_[1]->pinged_nanos());
  }
  const auto pong = [&](int i) { return membership_.Ponged(ids_[1], {.leader_nanos = sent[i], .rank_nanos = 1}); };
  EXPECT_EQ(ReasonOf(pong(0)), "RANK_MESSAGE");
  EXPECT_TRUE(pong(1).ok());
  EXPECT_TRUE(pong(1000).ok());
}

TEST_F(MembershipTest, PongsMayOvertakeEachOther) {
  Complete();
  std::vector<int64_t> sent;
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(1));
    membership_.Heard(ids_[1]);
    membership_.Look();
    sent.push_back(lines_[1]->pinged_nanos());
  }
  const auto pong = [&](int i) {
    return membership_.Ponged(ids_[1],
                              {.leader_nanos = sent[i], .rank_nanos = sent[i], .received = {{Rank(0), {i, 8 * i}}}});
  };
  EXPECT_TRUE(pong(2).ok());
  EXPECT_TRUE(pong(0).ok());
  EXPECT_TRUE(pong(1).ok());
  EXPECT_EQ(membership_.view().ranks[Rank(1)].received.at(Rank(0)).bytes, 16);
}

TEST_F(MembershipTest, TheSameProcessTakesItsOwnPlaceAgain) {
  Complete();
  const MemberId before = ids_[1];
  ASSERT_TRUE(Join(1).ok());
  EXPECT_THAT(Take(),
              ElementsAre("1 end RANK_LOST", "0 dissolve 1 for 1 RANK_LOST", "2 dissolve 1 for 1 RANK_LOST",
                          "lost 1 RANK_LOST", "1 welcome to 7 for 5s", "0 prepare 2", "1 prepare 2", "2 prepare 2"));
  membership_.Leave(before, absl::UnavailableError("the old stream ends late"));
  membership_.Failed(before, lines_[1]->group(), absl::UnavailableError("from the old stream"));
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(MembershipTest, AFailureEndsTheGenerationAndTheNextOneWaits) {
  Complete();
  membership_.Failed(ids_[2], lines_[2]->group(),
                     Error(absl::StatusCode::kUnavailable, "RANK_LOST", "no descriptor is left"));
  EXPECT_THAT(Take(), ElementsAre("0 dissolve 1 for -1 RANK_LOST", "1 dissolve 1 for -1 RANK_LOST",
                                  "2 dissolve 1 for -1 RANK_LOST", "failed 2 in 1 RANK_LOST"))
      << "its carrier could not be opened: no edge of an earlier generation is over";
  const int64_t pause_end = clock_.NowNanos() + 1'000'000'000;
  EXPECT_EQ(membership_.Look(), pause_end);
  clock_.AdvanceNanos(pause_end - clock_.NowNanos() - 1);
  membership_.Look();
  EXPECT_THAT(Take(), IsEmpty());
  clock_.AdvanceNanos(1);
  membership_.Look();
  EXPECT_THAT(Take(), ElementsAre("0 ping", "1 ping", "2 ping", "0 prepare 2", "1 prepare 2", "2 prepare 2"));
}

TEST_F(MembershipTest, WhoIsToldMayAnswerAtOnceAndIsToldOneThingAtATime) {
  JoinAll();
  PrepareAll();
  Take();
  on_formed_ = [this] {
    membership_.Leave(ids_[0], absl::UnavailableError("it was enough"));
    told_.push_back("that was all");
  };
  FormAll();
  EXPECT_THAT(Take(), ElementsAre("formed 1 of 3", "that was all", "0 end RANK_LOST", "1 dissolve 1 for 0 RANK_LOST",
                                  "2 dissolve 1 for 0 RANK_LOST", "lost 0 RANK_LOST"));
}

TEST_F(MembershipTest, TheEndOfTheLeaderEndsAllAndNobodyJoins) {
  Complete();
  membership_.Close();
  EXPECT_THAT(Take(), ElementsAre("0 end DRAINING", "1 end DRAINING", "2 end DRAINING"));
  EXPECT_EQ(ReasonOf(Join(1)), "DRAINING");
  membership_.Look();
  EXPECT_THAT(Take(), IsEmpty());
}

// Answers everything at once, and checks that it is told things in their order.
class QuickLine : public MemberLine {
 public:
  void Welcome(Epoch, absl::Duration) override { EXPECT_EQ(std::exchange(state_, 1), 0); }
  void Ping(int64_t) override { EXPECT_EQ(state_, 1); }
  void Prepare(const GroupIdentity& group) override {
    EXPECT_EQ(state_, 1);
    EXPECT_GT(group.generation, generation_);
    generation_ = group.generation;
  }
  void Form(const Group& group) override { EXPECT_EQ(group.identity.generation, generation_); }
  void Dissolve(const GroupIdentity& group, Rank, const absl::Status&) override {
    // Also of a loss after a generation that ended before this one joined.
    if (generation_ != 0) {
      EXPECT_LE(group.generation, generation_);
    }
  }
  void Draining(bool) override { EXPECT_EQ(state_, 1); }
  void Tell(std::vector<MessagePart>) override { EXPECT_EQ(state_, 1); }
  void End(const absl::Status&) override { EXPECT_EQ(std::exchange(state_, 2), 1); }

 private:
  int state_ = 0;  // before the welcome, joined, ended
  uint32_t generation_ = 0;
};

class NoListener : public MembershipListener {
  void OnFormed(const Group&, const std::map<Rank, FormedRank>&) override {}
  void OnLost(Rank, const absl::Status&) override {}
  void OnFailed(Rank, const GroupIdentity&, const absl::Status&) override {}
  absl::Status OnTold(Rank, MessagePart) override { return absl::OkStatus(); }
};

TEST(MembershipThreads, MembersAreToldInOrderWhoeverActs) {
  FakeClock clock;
  NoListener listener;
  Membership membership({.epoch = Epoch(1), .world_size = 4, .clock = &clock}, &listener);
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.push_back(std::make_unique<Thread>(absl::StrCat("rank-", rank), [&membership, &clock, rank] {
        for (int i = 0; i < 300; ++i) {
          const auto id = membership.Join({.rank = Rank(rank), .world_size = 4}, std::make_shared<QuickLine>());
          ASSERT_TRUE(id.ok()) << id.status();
          membership.Heard(*id);
          membership.Look();
          if (i % 3 == 0) membership.Leave(*id, absl::UnavailableError("gone"));
          clock.AdvanceNanos(1000);
        }
      }));
    }
  }
  membership.Close();
}

// Holds what begins with "slow" until it may go on.
class SlowListener : public NoListener {
 public:
  absl::Status OnTold(Rank, MessagePart part) override {
    if (part.data == "slow") {
      begun.Notify();
      go_on.WaitForNotification();
    }
    absl::MutexLock lock(&mu_);
    heard_.insert(part.data);
    return absl::OkStatus();
  }
  bool Heard(const std::string& what) {
    absl::MutexLock lock(&mu_);
    return heard_.contains(what);
  }

  absl::Notification begun;
  absl::Notification go_on;

 private:
  absl::Mutex mu_;
  std::set<std::string> heard_ ABSL_GUARDED_BY(mu_);
};

TEST(MembershipThreads, WhoTellsIsHeardBeforeItMayTellMoreAndNobodyElseWaits) {
  for (int round = 0; round < 100; ++round) {
    FakeClock clock;
    SlowListener listener;
    Membership membership({.epoch = Epoch(1), .world_size = 4, .clock = &clock}, &listener);
    std::vector<MemberId> ids;
    for (const int rank : {1, 2, 3}) {
      ids.push_back(*membership.Join({.rank = Rank(rank), .world_size = 4}, std::make_shared<QuickLine>()));
    }
    Thread slow("slow", [&] { membership.Told(ids[0], {.data = "slow"}); });
    listener.begun.WaitForNotification();
    std::vector<std::unique_ptr<Thread>> others;
    absl::BlockingCounter run(2);
    for (const int rank : {1, 2}) {
      others.push_back(std::make_unique<Thread>("other", [&, rank] {
        const std::string said = absl::StrCat("of ", rank);
        run.DecrementCount();
        membership.Told(ids[rank], {.data = said});
        EXPECT_TRUE(listener.Heard(said));
      }));
    }
    run.Wait();
    membership.Look();
    listener.go_on.Notify();
    for (const auto& other : others) other->Join();
    slow.Join();
    membership.Close();
  }
}

TEST(MembershipThreads, WhoTellsIsNotSilentThoughItIsNotReadMeanwhile) {
  FakeClock clock;
  SlowListener listener;
  Membership membership({.epoch = Epoch(1), .world_size = 4, .clock = &clock}, &listener);
  std::vector<MemberId> ids;
  for (const int rank : {1, 2}) {
    ids.push_back(*membership.Join({.rank = Rank(rank), .world_size = 4}, std::make_shared<QuickLine>()));
  }
  Thread slow("slow", [&] { membership.Told(ids[0], {.data = "slow"}); });
  listener.begun.WaitForNotification();
  const auto member = [&](int rank) { return membership.view().ranks.at(Rank(rank)).member; };
  clock.Advance(absl::Hours(1));
  EXPECT_GT(membership.Look(), clock.NowNanos());
  EXPECT_TRUE(member(1));
  EXPECT_FALSE(member(2));
  listener.go_on.Notify();
  slow.Join();
  membership.Look();
  EXPECT_TRUE(member(1));
  clock.Advance(absl::Hours(1));
  membership.Look();
  EXPECT_FALSE(member(1));
  membership.Close();
}

}  // namespace
}  // namespace penstock::testing
