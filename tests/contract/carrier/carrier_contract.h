#pragma once

// What every carrier promises. An implementation instantiates the suite with a factory:
//   INSTANTIATE_TYPED_TEST_SUITE_P(Fake, CarrierContract, FakeCarrierFactory);

#include <dirent.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/thread.h"
#include "engine/transport/carrier.h"
#include "tests/contract/carrier/carrier_end.h"

namespace penstock::testing {

// Of the payload of one of many frames: none, small, and so large that a carrier may send it in another way.
inline int64_t MixedBytes(int seed) { return seed % 10 == 0 ? 300'000 : (seed % 3) * 20'000; }

inline int CountIn(const char* path) {
  DIR* const folder = opendir(path);
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}
inline int OpenDescriptors() { return CountIn("/proc/self/fd"); }
inline int Threads() { return CountIn("/proc/self/task"); }

// Factory: Make(rank) returns a carrier.
template <typename Factory>
class CarrierContract : public ::testing::Test {
 protected:
  // `count` ranks that know each other, not started yet.
  void Form(int count) {
    ends_.clear();
    for (int rank = 0; rank < count; ++rank) {
      ends_.push_back(std::make_unique<CarrierEnd>(factory_.Make(Rank(rank))));
    }
  }
  void Start() {
    for (size_t self = 0; self < ends_.size(); ++self) {
      std::map<Rank, std::string> peers;
      for (size_t peer = 0; peer < ends_.size(); ++peer) {
        if (peer != self) peers[Rank(static_cast<int>(peer))] = ends_[peer]->carrier->address();
      }
      ASSERT_TRUE(ends_[self]->Start(peers).ok());
    }
  }
  void TearDown() override {
    for (const auto& end : ends_) end->carrier->Close();
  }
  Carrier& carrier(int rank) { return *ends_[rank]->carrier; }
  CarrierEnd& end(int rank) { return *ends_[rank]; }

  Factory factory_;
  std::vector<std::unique_ptr<CarrierEnd>> ends_;
};

TYPED_TEST_SUITE_P(CarrierContract);

TYPED_TEST_P(CarrierContract, PayloadsOfEverySizeArriveWhole) {
  this->Form(2);
  this->Start();
  const std::vector<int64_t> sizes = {
      0, 1, 63, 4096, 65536, 65537, 262144, 262145, int64_t{1} << 20, int64_t{64} << 20};
  size_t sent = 0;
  for (const int64_t size : sizes) {
    const std::string pattern = Pattern(size, static_cast<int>(sent));
    this->carrier(0).Send(Rank(1), {.header = "one", .payload = {OwnedPiece(pattern)}});
    const int64_t third = size / 3;
    this->carrier(0).Send(Rank(1), {.header = "halves",
                                    .payload = {OwnedPiece(pattern.substr(0, third)), OwnedPiece(""),
                                                OwnedPiece(pattern.substr(third))}});
    ASSERT_TRUE(this->end(1).AwaitArrivals(sent += 2)) << size;
    absl::MutexLock lock(&this->end(1).mu);
    for (size_t i = sent - 2; i < sent; ++i) {
      EXPECT_TRUE(this->end(1).arrivals[i].ended.ok()) << this->end(1).arrivals[i].ended;
      EXPECT_TRUE(*this->end(1).arrivals[i].payload == pattern) << size;
    }
  }
  this->carrier(0).Send(Rank(1), {.header = std::string(kMaximumFrameHeaderBytes, 'h')});
  ASSERT_TRUE(this->end(1).AwaitArrivals(sent + 1));
  absl::MutexLock lock(&this->end(1).mu);
  EXPECT_EQ(this->end(1).headers.back().size(), kMaximumFrameHeaderBytes);
}

TYPED_TEST_P(CarrierContract, HeadersOfAnEdgeKeepTheirOrder) {
  this->Form(2);
  this->Start();
  constexpr int kFrames = 200;
  for (int i = 0; i < kFrames; ++i) {
    this->carrier(0).Send(Rank(1), {.header = absl::StrCat(i), .payload = {OwnedPiece(Pattern(MixedBytes(i), i))}});
  }
  ASSERT_TRUE(this->end(1).AwaitArrivals(kFrames));
  absl::MutexLock lock(&this->end(1).mu);
  for (int i = 0; i < kFrames; ++i) EXPECT_EQ(this->end(1).headers[i], absl::StrCat(i));
}

TYPED_TEST_P(CarrierContract, ManyThreadsSendBothWaysAtOnce) {
  this->Form(2);
  this->Start();
  constexpr int kThreads = 4;
  constexpr int kFrames = 50;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < 2 * kThreads; ++t) {
      threads.push_back(std::make_unique<Thread>("sender", [&, t] {
        for (int i = 0; i < kFrames; ++i) {
          const int seed = t * kFrames + i;
          this->carrier(t % 2).Send(Rank(1 - t % 2), {.header = absl::StrCat(seed),
                                                      .payload = {OwnedPiece(Pattern(MixedBytes(seed), seed))}});
        }
      }));
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(this->end(rank).AwaitArrivals(kThreads * kFrames));
    absl::MutexLock lock(&this->end(rank).mu);
    for (const auto& arrival : this->end(rank).arrivals) {
      const int seed = std::stoi(arrival.header);
      EXPECT_EQ(seed / kFrames % 2, 1 - rank);
      EXPECT_TRUE(arrival.ended.ok() && *arrival.payload == Pattern(MixedBytes(seed), seed)) << seed;
    }
  }
}

TYPED_TEST_P(CarrierContract, APayloadThatIsTurnedAwayCostsNothingElse) {
  this->Form(2);
  this->Start();
  for (const int64_t size : {0, 100, 1 << 20}) {
    this->carrier(0).Send(Rank(1), {.header = "bad", .payload = {OwnedPiece(Pattern(size, 1))}});
    this->carrier(0).Send(Rank(1), {.header = "good", .payload = {OwnedPiece(Pattern(size, 2))}});
  }
  ASSERT_TRUE(this->end(1).AwaitArrivals(3));
  absl::MutexLock lock(&this->end(1).mu);
  EXPECT_EQ(this->end(1).headers.size(), 6);
  for (const auto& arrival : this->end(1).arrivals) EXPECT_EQ(arrival.header, "good");
  EXPECT_TRUE(this->end(1).lost.empty());
}

TYPED_TEST_P(CarrierContract, HandlersMaySend) {
  this->Form(2);
  for (int rank = 0; rank < 2; ++rank) {
    this->end(rank).on_arrival = [this, rank](const CarrierEnd::Arrival& arrival) {
      const int left = std::stoi(arrival.header);
      if (left == 0) return;
      this->carrier(rank).Send(Rank(1 - rank),
                               {.header = absl::StrCat(left - 1), .payload = {OwnedPiece(*arrival.payload)}});
    };
  }
  this->Start();
  this->carrier(0).Send(Rank(1), {.header = "9", .payload = {OwnedPiece(Pattern(40000, 3))}});
  ASSERT_TRUE(this->end(0).AwaitArrivals(5));
  absl::MutexLock lock(&this->end(0).mu);
  EXPECT_TRUE(*this->end(0).arrivals.back().payload == Pattern(40000, 3));
}

TYPED_TEST_P(CarrierContract, AnEdgeThatIsGivenUpIsToldOnceAndOthersStay) {
  this->Form(3);
  this->Start();
  this->carrier(0).Send(Rank(1), {.header = "a"});
  this->carrier(1).Send(Rank(0), {.header = "a"});
  ASSERT_TRUE(this->end(1).AwaitArrivals(1));
  ASSERT_TRUE(this->end(0).AwaitArrivals(1));
  this->carrier(0).Disconnect(Rank(1), absl::UnavailableError("its heart stopped"));
  this->carrier(0).Disconnect(Rank(1), absl::UnavailableError("again"));
  ASSERT_TRUE(this->end(0).AwaitLosses(1));
  this->carrier(0).Send(Rank(1), {.header = "dropped", .payload = {OwnedPiece(Pattern(100000, 1))}});
  this->carrier(0).Send(Rank(2), {.header = "b", .payload = {OwnedPiece(Pattern(100000, 1))}});
  this->carrier(2).Send(Rank(1), {.header = "c"});
  ASSERT_TRUE(this->end(2).AwaitArrivals(1));
  ASSERT_TRUE(this->end(1).AwaitArrivals(2));
  {
    absl::MutexLock lock(&this->end(1).mu);
    EXPECT_EQ(this->end(1).arrivals.back().header, "c");
  }
  absl::MutexLock lock(&this->end(0).mu);
  ASSERT_EQ(this->end(0).lost.size(), 1);
  EXPECT_EQ(this->end(0).lost[0].first, Rank(1));
  EXPECT_EQ(this->end(0).lost[0].second.message(), "its heart stopped");
}

TYPED_TEST_P(CarrierContract, CloseLetsLeaveWhatIsUnderWay) {
  this->Form(2);
  this->Start();
  constexpr int kFrames = 30;
  for (int i = 0; i < kFrames; ++i) {
    this->carrier(0).Send(Rank(1), {.header = "x", .payload = {OwnedPiece(Pattern(int64_t{1} << 20, i))}});
  }
  this->carrier(0).Close();
  this->carrier(0).Send(Rank(1), {.header = "late"});
  ASSERT_TRUE(this->end(1).AwaitArrivals(kFrames));
  this->carrier(1).Close();
  absl::MutexLock lock(&this->end(1).mu);
  EXPECT_EQ(this->end(1).headers.size(), kFrames);
  for (const auto& arrival : this->end(1).arrivals) EXPECT_TRUE(arrival.ended.ok()) << arrival.ended;
}

TYPED_TEST_P(CarrierContract, FormingAgainLeavesNoDescriptorAndNoThreadBehind) {
  constexpr int kPoolThreads = 4;  // by which a library's own pools may still grow; eighteen formings follow
  int descriptors = 0;
  int threads = 0;
  for (int forming = 0; forming < 20; ++forming) {
    this->Form(2);
    this->Start();
    this->carrier(0).Send(Rank(1), {.header = "a", .payload = {OwnedPiece(Pattern(100000, 1))}});
    this->carrier(1).Send(Rank(0), {.header = "a", .payload = {OwnedPiece(Pattern(100000, 1))}});
    ASSERT_TRUE(this->end(0).AwaitArrivals(1));
    ASSERT_TRUE(this->end(1).AwaitArrivals(1));
    if (forming % 2 == 1) {  // as after a loss
      this->carrier(0).Disconnect(Rank(1), absl::UnavailableError("lost"));
      ASSERT_TRUE(this->end(0).AwaitLosses(1));
    }
    this->TearDown();
    this->ends_.clear();
    if (forming == 1) {
      descriptors = OpenDescriptors();
      threads = Threads() + kPoolThreads;
    }
  }
  // The kernel may list a thread that has ended, and a library close a connection, a moment later.
  const absl::Time patience = absl::Now() + absl::Minutes(1);
  while ((OpenDescriptors() > descriptors || Threads() > threads) && absl::Now() < patience) std::this_thread::yield();
  EXPECT_LE(OpenDescriptors(), descriptors);
  EXPECT_LE(Threads(), threads);
}

REGISTER_TYPED_TEST_SUITE_P(CarrierContract, PayloadsOfEverySizeArriveWhole, HeadersOfAnEdgeKeepTheirOrder,
                            ManyThreadsSendBothWaysAtOnce, APayloadThatIsTurnedAwayCostsNothingElse, HandlersMaySend,
                            AnEdgeThatIsGivenUpIsToldOnceAndOthersStay, CloseLetsLeaveWhatIsUnderWay,
                            FormingAgainLeavesNoDescriptorAndNoThreadBehind);

}  // namespace penstock::testing
