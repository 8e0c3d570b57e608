#include "engine/serve/request_log.h"

#include <gmock/gmock.h>
#include <malloc.h>

#include "engine/serve/call.h"

namespace penstock {
namespace {

constexpr int64_t kMinute = int64_t{60} * 1'000'000'000;

RequestKey Key(const std::string& id) { return {"ann", "TrainStep", id}; }

TEST(RequestLogTest, ARetryGetsTheFirstAnswerAndAnotherPayloadIsRefused) {
  RequestLog<int> log({});
  EXPECT_FALSE(log.Find(Key("1"), "a", 0)->has_value());
  log.Record(Key("1"), "a", 11, 0);
  EXPECT_EQ(**log.Find(Key("1"), "a", 1), 11);
  EXPECT_EQ(ReasonOf(log.Find(Key("1"), "b", 1).status()), "REQUEST_ID_REUSED");
  EXPECT_FALSE(log.Find({"bob", "TrainStep", "1"}, "b", 1)->has_value());
  EXPECT_FALSE(log.Find({"ann", "Infer", "1"}, "b", 1)->has_value());
}

TEST(RequestLogTest, ForgetsAfterADayOrWhenManyAreNewerButNotWithinTenMinutes) {
  RequestLog<int> log({.entries = 2});
  for (int i = 0; i < 3; ++i) log.Record(Key(std::to_string(i)), "a", i, 0);
  EXPECT_EQ(log.size(), 3) << "too young to go";
  EXPECT_TRUE(log.Find(Key("0"), "a", 10 * kMinute - 1)->has_value());
  EXPECT_FALSE(log.Find(Key("0"), "a", 10 * kMinute)->has_value());
  EXPECT_TRUE(log.Find(Key("1"), "a", 24 * 60 * kMinute - 1)->has_value());
  EXPECT_FALSE(log.Find(Key("1"), "a", 24 * 60 * kMinute)->has_value());
}

TEST(RequestLogTest, RefusesNewIdsWhenFull) {
  RequestLog<int> log({.entries = 1, .max_entries = 2});
  log.Record(Key("0"), "a", 0, 0);
  log.Record({"bob", "TrainStep", "1"}, "a", 1, 0);
  EXPECT_TRUE(log.Find(Key("0"), "a", 0)->has_value());
  EXPECT_EQ(ReasonOf(log.Find({"carl", "TrainStep", "2"}, "a", 0).status()), "REQUEST_LOG_FULL");
  EXPECT_EQ(ReasonOf(log.Find(Key("2"), "a", 0).status()), "REQUEST_LOG_FULL");
  EXPECT_TRUE(log.Find(Key(""), "a", 0).ok()) << "a call without an id needs no place";
}

TEST(RequestLogTest, ACallerHasAShareAndLeavesRoomForOthers) {
  RequestLog<int> log({.entries = 1, .max_entries = 8});
  const auto find = [&](const std::string& caller, int64_t now) {
    return ReasonOf(log.Find({caller, "TrainStep", "new"}, "a", now).status());
  };
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(find("ann", 0), "") << "alone, three quarters: " << i;
    log.Record(Key(std::to_string(i)), "a", i, 0);
  }
  EXPECT_EQ(find("ann", 0), "REQUEST_LOG_FULL");
  for (int i = 0; i < 3; ++i) log.Erase(Key(std::to_string(i)));
  EXPECT_EQ(find("ann", 0), "") << "what had no effect takes no room";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(find("bob", 0), "") << "beside her, a quarter: " << i;
    log.Record({"bob", "TrainStep", std::to_string(i)}, "a", i, kMinute);
  }
  EXPECT_EQ(find("bob", kMinute), "REQUEST_LOG_FULL");
  EXPECT_EQ(find("ann", kMinute), "REQUEST_LOG_FULL");
  EXPECT_EQ(find("carl", kMinute), "");
  EXPECT_EQ(find("ann", 10 * kMinute), "") << "hers are forgotten";
}

TEST(RequestLogTest, AnErasedKeyMayBeUsedAgain) {
  RequestLog<int> log({});
  log.Record(Key("0"), "a", 0, 0);
  log.Erase(Key("0"));
  EXPECT_EQ(log.size(), 0) << "nothing of it is left";
  EXPECT_FALSE(log.Find(Key("0"), "a", 0)->has_value());
  log.Record(Key("0"), "a", 5, kMinute);
  EXPECT_EQ(**log.Find(Key("0"), "a", 24 * 60 * kMinute), 5) << "its age counts from the second recording";
}

TEST(RequestLogTest, CountsWhatItTakesOfTheHeap) {
  const auto used = [] { return static_cast<int64_t>(::mallinfo2().uordblks); };
  if (used() == 0) GTEST_SKIP() << "this allocator tells nothing";
  constexpr int64_t kCalls = 10'000;
  MemoryLedger ledger(int64_t{1} << 30);
  RequestLog<RecordedAnswer> log({.entries = 1}, ledger.TakeAnyway({MemoryClass::kAnswers}, 0));
  const auto key = [](int64_t call) { return Key(std::to_string(call) + std::string(32, 'i')); };
  const auto record = [&](int64_t call, int64_t now) {
    const HandleName name{"a-pipeline-of-a-long-name", {}};
    const Accepted accepted{.request_id = key(call).request_id,
                            .outcome = name,
                            .outputs = name,
                            .graph = {},
                            .durable = std::make_shared<Durability>()};
    log.Record(key(call), std::string(64, 'd'), accepted, now);
  };
  const int64_t before = used();
  for (int64_t call = 0; call < kCalls; ++call) record(call, 0);
  const auto taken = static_cast<double>(used() - before);
  EXPECT_NEAR(static_cast<double>(ledger.bytes()), taken, 0.15 * taken);

  const int64_t each = ledger.bytes() / kCalls;
  log.Erase(key(0));
  EXPECT_NEAR(static_cast<double>(ledger.bytes()), static_cast<double>((kCalls - 1) * each), 100);
  record(kCalls, 10 * kMinute);
  EXPECT_EQ(log.size(), 1) << "the others are old enough to go";
  EXPECT_NEAR(static_cast<double>(ledger.bytes()), static_cast<double>(each), 100);
  log.Erase(key(kCalls));
  EXPECT_EQ(ledger.bytes(), 0);
}

}  // namespace
}  // namespace penstock
