#include "engine/observe/trace_ring.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <vector>

#include "engine/base/thread.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

// A record whose every field follows from its number.
TraceRecord Numbered(int64_t n) {
  return {.begin_nanos = n,
          .end_nanos = 3 * n + 1,
          .kind = static_cast<TraceKind>(n % 12),
          .detail = static_cast<uint8_t>(n % 200),
          .inference = n % 2 == 1,
          .failed = n % 3 == 1,
          .lane = static_cast<int16_t>(n % 1000),
          .peer = static_cast<int16_t>(n % 4000 - 1),
          .stage = static_cast<int32_t>(n % 4096),
          .micro_batch = static_cast<int32_t>(n % 65536),
          .step = n * 7,
          .run = -n,
          .correlation = static_cast<uint64_t>(n) * 0x123456789abcdef};
}

std::vector<TraceRecord> All(const TraceRing& ring) {
  std::vector<TraceRecord> records;
  ring.Read(0, ring.written(), &records);
  return records;
}

TEST(TraceRingTest, GivesBackEveryField) {
  TraceRing ring(16);
  TraceRecord minus;
  minus.peer = -1;
  minus.stage = -1;
  minus.micro_batch = -1;
  minus.begin_nanos = -5;
  ring.Record(Numbered(123'457));
  ring.Record(minus);
  const std::vector<TraceRecord> records = All(ring);
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[0], Numbered(123'457));
  EXPECT_EQ(records[1], minus);
}

TEST(TraceRingTest, KeepsAtLeastAsManyAsAsked) {
  EXPECT_EQ(TraceRing(1).capacity(), 16);
  EXPECT_EQ(TraceRing(1000).capacity(), 1024);
  EXPECT_EQ(TraceRing(65'536).capacity(), 65'536);
  EXPECT_EQ(TraceRing().capacity(), 65'536);
}

TEST(TraceRingTest, ARingOfZeroKeepsAndCountsNothing) {
  TraceRing ring(0);
  ring.Record(Numbered(1));
  EXPECT_EQ(ring.capacity(), 0);
  EXPECT_EQ(ring.written(), 0);
  EXPECT_EQ(ring.dropped(), 0);
  EXPECT_TRUE(All(ring).empty());
}

TEST(TraceRingTest, OverwritesTheOldestAndCountsThem) {
  TraceRing ring(16);
  for (int n = 0; n < 16; ++n) ring.Record(Numbered(n));
  EXPECT_EQ(ring.dropped(), 0);
  EXPECT_EQ(All(ring).size(), 16);
  for (int n = 16; n < 21; ++n) ring.Record(Numbered(n));
  EXPECT_EQ(ring.written(), 21);
  EXPECT_EQ(ring.dropped(), 5);
  std::vector<TraceRecord> records;
  EXPECT_EQ(ring.Read(0, 21, &records), 5);
  ASSERT_EQ(records.size(), 16);
  EXPECT_EQ(records.front(), Numbered(5));
  EXPECT_EQ(records.back(), Numbered(20));
}

TEST(TraceRingTest, ReadsOnFromAPlace) {
  TraceRing ring(16);
  for (int n = 0; n < 10; ++n) ring.Record(Numbered(n));
  std::vector<TraceRecord> records;
  EXPECT_EQ(ring.Read(7, 9, &records), 0);
  EXPECT_EQ(ring.Read(9, 100, &records), 0);  // what is not written yet does not count as lost
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(records[0], Numbered(7));
  EXPECT_EQ(records[2], Numbered(9));
  EXPECT_EQ(ring.Read(12, 100, &records), 0);
  EXPECT_EQ(records.size(), 3);
  for (int n = 10; n < 60; ++n) ring.Record(Numbered(n));
  EXPECT_EQ(ring.Read(10, 20, &records), 10) << "all of them are gone";
  EXPECT_EQ(records.size(), 3);
}

TEST(TraceRingTest, AReaderBesideTheWriterSeesWholeRecordsWithoutAGap) {
  TraceRing ring(64);
  constexpr int64_t kRecords = 200'000;
  std::atomic<bool> failed = false;
  {
    std::vector<std::unique_ptr<Thread>> readers;
    for (int i = 0; i < 2; ++i) {
      readers.push_back(std::make_unique<Thread>("reader", [&] {
        uint64_t next = 0;
        std::vector<TraceRecord> records;
        while (next < kRecords) {
          records.clear();
          const uint64_t until = ring.written();
          const uint64_t lost = ring.Read(next, until, &records);
          if (lost + records.size() != until - next) failed = true;
          for (size_t k = 0; k < records.size(); ++k) {
            if (records[k] != Numbered(static_cast<int64_t>(next + lost + k))) failed = true;
          }
          next = until;
        }
      }));
    }
    for (int64_t n = 0; n < kRecords; ++n) ring.Record(Numbered(n));
  }
  EXPECT_FALSE(failed);
}

// The oldest record is the one that the writer overwrites next.
TEST(TraceRingTest, TheOldestRecordIsWholeOrGone) {
  TraceRing ring(16);
  constexpr int64_t kRecords = 2'000'000;
  std::atomic<bool> failed = false;
  {
    Thread reader("reader", [&] {
      std::vector<TraceRecord> records;
      while (ring.written() < kRecords) {
        records.clear();
        const uint64_t written = ring.written();
        const uint64_t oldest = written > 16 ? written - 16 : 0;
        const uint64_t until = std::min(written, oldest + 1);  // nothing, as long as nothing is written
        const uint64_t lost = ring.Read(oldest, until, &records);
        if (lost + records.size() != until - oldest) failed = true;
        if (!records.empty() && records[0] != Numbered(static_cast<int64_t>(oldest))) failed = true;
      }
    });
    for (int64_t n = 0; n < kRecords; ++n) ring.Record(Numbered(n));
  }
  EXPECT_FALSE(failed);
}

TEST(TraceRingTest, MessagesHaveNumbersOfTheirOwn) {
  std::set<uint64_t> seen;
  for (int64_t run = 0; run < 20; ++run) {
    for (int stage = 0; stage < 8; ++stage) {
      for (int micro_batch = 0; micro_batch < 16; ++micro_batch) {
        for (const bool gradient : {false, true}) {
          for (const int peer : {-1, 0, 3}) seen.insert(MessageCorrelation(run, gradient, stage, micro_batch, peer));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 20 * 8 * 16 * 2 * 3);
  EXPECT_EQ(seen.count(0), 0);
}

}  // namespace
}  // namespace penstock
