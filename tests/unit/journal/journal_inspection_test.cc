// What those who run the daemon read of a journal that is in use: List(), Outcomes(), Check().

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/journal/journal_life.h"

namespace penstock {
namespace {

using testing::ContentOf;
using testing::JournalLife;

class JournalInspection : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(life_.Open().ok()); }

  // Calls 1 to 6: 1 and 2 are cut, 5 has no outcome.
  void Fill() {
    for (int64_t sequence = 1; sequence <= 6; ++sequence) {
      ASSERT_TRUE(life_.Append(sequence, sequence == 4 ? 5000 : 10).ok());
      if (sequence == 5) continue;
      ASSERT_TRUE(life_.Settle(sequence, absl::StrCat("outcome ", sequence)).ok());
    }
    ASSERT_TRUE(life_.Cut(2).ok());
  }
  std::vector<int64_t> Listed(int64_t after, bool newest_first, int64_t limit) {
    const auto listed = life_.journal->List(after, newest_first, limit);
    EXPECT_TRUE(listed.ok()) << listed.status();
    std::vector<int64_t> sequences;
    for (const ListedCall& call : *listed) sequences.push_back(call.sequence);
    return sequences;
  }
  void Flip(const std::string& path, const std::string& text) {
    const size_t at = life_.disk.Read(path)->rfind(text);
    ASSERT_NE(at, std::string::npos) << text;
    life_.disk.Flip(path, at);
  }

  JournalLife life_;
};

TEST_F(JournalInspection, ListsBothWaysWithCallsThatAreCutOrOpen) {
  Fill();
  EXPECT_EQ(Listed(0, false, 100), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Listed(0, true, 100), (std::vector<int64_t>{6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(Listed(2, false, 3), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(Listed(6, true, 3), (std::vector<int64_t>{5, 4, 3}));
  EXPECT_TRUE(Listed(6, false, 3).empty());
  EXPECT_TRUE(Listed(1, true, 3).empty());
  const std::vector<ListedCall> calls = *life_.journal->List(0, false, 100);
  EXPECT_TRUE(calls[1].cut);
  EXPECT_EQ(calls[1].request_id, "request-2");
  EXPECT_EQ(calls[1].outcome.bytes, "outcome 2");
  EXPECT_FALSE(calls[3].cut);
  EXPECT_EQ(calls[3].inputs, 1);
  EXPECT_EQ(calls[3].input_bytes, std::ssize(ContentOf(4, 5000)));
  EXPECT_EQ(calls[3].accepted_unix_nanos, 4000);
  EXPECT_EQ(calls[3].outcome.run_nanos, 5);
  EXPECT_EQ(calls[4].outcome.status, CallStatus::kAccepted);
}

TEST_F(JournalInspection, GivesOutcomesInPages) {
  Fill();
  const auto outcomes = life_.journal->Outcomes(1, 3);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), 3);
  EXPECT_EQ((*outcomes)[0].sequence, 2);
  EXPECT_EQ((*outcomes)[2].outcome.bytes, "outcome 4");
  EXPECT_EQ(life_.journal->Outcomes(4, 3)->front().sequence, 6);
}

TEST_F(JournalInspection, CountsWhatItHasCompared) {
  Fill();
  const JournalCheck check = life_.journal->Check();
  EXPECT_TRUE(check.damage.ok()) << check.damage;
  EXPECT_EQ(check.calls, 4);
  EXPECT_EQ(check.inputs, 4);
  EXPECT_EQ(check.input_bytes, std::ssize(ContentOf(4, 5000)) + 3 * std::ssize(ContentOf(3, 10)));
  EXPECT_EQ(check.outcomes, 5);
}

TEST_F(JournalInspection, SeesDamageBehindItsBack) {
  Fill();
  const std::string content = absl::StrCat(JournalLife::kBlobs, "/", life_.disk.List(JournalLife::kBlobs)->front());
  life_.disk.Flip(content, 100);
  JournalCheck check = life_.journal->Check();
  EXPECT_EQ(ReasonOf(check.damage), "JOURNAL_CORRUPT");
  EXPECT_NE(check.damage.message().find("call 4"), absl::string_view::npos) << check.damage;
  EXPECT_EQ(check.calls, 2);
  life_.disk.Flip(content, 100);
  EXPECT_TRUE(life_.journal->Check().damage.ok());

  // In a row that the database has read and still has in memory.
  Flip(JournalLife::kLog, "parameters of 3");
  check = life_.journal->Check();
  EXPECT_NE(check.damage.message().find("call 3"), absl::string_view::npos) << check.damage;
  EXPECT_EQ(check.calls, 0);
}

TEST_F(JournalInspection, FollowsACutThatComesMeanwhile) {
  for (int64_t sequence = 1; sequence <= 200; ++sequence) {
    ASSERT_TRUE(life_.Append(sequence, sequence % 2 == 0 ? 5000 : 10).ok());
    ASSERT_TRUE(life_.Settle(sequence).ok());
  }
  int64_t asked = 0;
  const JournalCheck check = life_.journal->Check([&] {
    ++asked;
    if (asked == 50) {
      EXPECT_TRUE(life_.Cut(100).ok());
    } else if (asked == 60) {
      EXPECT_TRUE(life_.Append(201, 5000).ok());
    }
    return true;
  });
  EXPECT_TRUE(check.damage.ok()) << check.damage;
  EXPECT_EQ(check.calls, 49 + 101);
  EXPECT_EQ(check.outcomes, 200);
  EXPECT_TRUE(life_.journal->Check([&] { return false; }).damage.code() == absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace penstock
