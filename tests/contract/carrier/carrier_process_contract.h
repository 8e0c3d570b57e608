#pragma once

// What every carrier between processes promises beside CarrierContract. An implementation has a kind that
// carrier_rank.cc knows, and instantiates the suite with a factory:
//   INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CarrierProcessContract, UcxCarrierFactory);

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/base/error.h"
#include "tests/contract/carrier/carrier_end.h"

namespace penstock::testing {

extern const char* const kCarrierRank;  // the program carrier_rank, as the test defines it

// Rank 1, in another process that runs carrier_rank.
class OtherRank {
 public:
  explicit OtherRank(const char* kind) {
    std::array<int, 2> in = {}, out = {};
    EXPECT_EQ(pipe(in.data()) + pipe(out.data()), 0);
    std::vector<char*> environment;  // without what this process has prepared for itself
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (!std::string_view(*variable).starts_with("UCX_")) environment.push_back(*variable);
    }
    environment.push_back(nullptr);
    id_ = fork();
    if (id_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
      execle(kCarrierRank, kCarrierRank, kind, nullptr, environment.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }
  ~OtherRank() {
    Kill();
    fclose(to_);
    fclose(from_);
  }

  std::string Address() {
    std::array<char, 8192> line = {};
    EXPECT_NE(fgets(line.data(), line.size(), from_), nullptr);
    std::string hex(line.data());
    while (!hex.empty() && hex.back() == '\n') hex.pop_back();
    return absl::HexStringToBytes(hex);
  }
  void Tell(const std::string& address) {
    fprintf(to_, "%s\n", absl::BytesToHexString(address).c_str());
    fflush(to_);
  }
  void Freeze() { kill(id_, SIGSTOP); }
  void Kill() {
    if (id_ <= 0) return;
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
    id_ = 0;
  }

 private:
  pid_t id_ = 0;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

// Factory: Make(rank, send_timeout_nanos) returns a carrier; kKind.
template <typename Factory>
class CarrierProcessContract : public ::testing::Test {
 protected:
  // Rank 0 here, and one that sends to it without end.
  static void Start(CarrierEnd& end, OtherRank& other) {
    ASSERT_TRUE(end.Start({{Rank(1), other.Address()}}).ok());
    other.Tell(end.carrier->address());
  }

  Factory factory_;
};

TYPED_TEST_SUITE_P(CarrierProcessContract);

TYPED_TEST_P(CarrierProcessContract, ARankThatIsKilledInMidTransferIsLostAndThisOneLives) {
  for (int kills = 0; kills < 10; ++kills) {
    CarrierEnd end(this->factory_.Make(Rank(0)));
    OtherRank other(TypeParam::kKind);
    this->Start(end, other);
    ASSERT_TRUE(end.AwaitArrivals(3 + kills));
    other.Kill();
    ASSERT_TRUE(end.AwaitLosses(1));
    end.carrier->Close();
    absl::MutexLock lock(&end.mu);
    ASSERT_EQ(end.lost.size(), 1);
    EXPECT_EQ(end.lost[0].first, Rank(1));
    EXPECT_EQ(ReasonOf(end.lost[0].second), "RANK_LOST");
    EXPECT_EQ(end.headers.size(), end.arrivals.size());  // each payload has ended, whole or not
  }
}

// Its process is frozen: no bytes move, and no connection ends.
TYPED_TEST_P(CarrierProcessContract, AFrameThatIsNotTakenInTimeCostsThePeer) {
  CarrierEnd end(this->factory_.Make(Rank(0), /*send_timeout_nanos=*/1'000'000'000));
  OtherRank other(TypeParam::kKind);
  this->Start(end, other);
  ASSERT_TRUE(end.AwaitArrivals(3));
  other.Freeze();
  end.carrier->Send(Rank(1), {.header = "x", .payload = {OwnedPiece(Pattern(int64_t{16} << 20, 1))}});
  ASSERT_TRUE(end.AwaitLosses(1));
  end.carrier->Close();
  absl::MutexLock lock(&end.mu);
  EXPECT_EQ(end.lost[0].second.message(), "it has not taken a frame in time");
}

REGISTER_TYPED_TEST_SUITE_P(CarrierProcessContract, ARankThatIsKilledInMidTransferIsLostAndThisOneLives,
                            AFrameThatIsNotTakenInTimeCostsThePeer);

}  // namespace penstock::testing
