#include "engine/ucx/ucx_carrier.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "engine/base/error.h"
#include "engine/ucx/ucx_environment.h"
#include "tests/contract/carrier/carrier_contract.h"
#include "tests/contract/transport/group_transport_contract.h"
#include "tests/contract/transport/transport_contract.h"

namespace penstock::testing {
namespace {

struct UcxCarrierFactory {
  std::unique_ptr<Carrier> Make(Rank) {
    auto carrier = UcxCarrier::Create({});
    EXPECT_TRUE(carrier.ok()) << carrier.status();
    return *std::move(carrier);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CarrierContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, GroupTransportContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxTwoRanks, TransportContract, TwoRanksFactory<UcxCarrierFactory>);

// CMakeLists.txt sets the same for this program.
TEST(UcxEnvironment, IsThatOfThisProgram) {
  for (const auto& [name, value] : UcxEnvironment({.network_interface = "lo"})) {
    const char* const set = std::getenv(name.c_str());
    ASSERT_NE(set, nullptr) << name;
    EXPECT_EQ(set, value) << name;
  }
}

// Another process that runs ucx_rank.
class OtherRank {
 public:
  OtherRank() {
    std::array<int, 2> in = {}, out = {};
    EXPECT_EQ(pipe(in.data()) + pipe(out.data()), 0);
    id_ = fork();
    if (id_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
      execl(PENSTOCK_UCX_RANK, PENSTOCK_UCX_RANK, nullptr);
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

TEST(UcxCarrier, ARankThatIsKilledInMidTransferIsLostAndThisOneLives) {
  for (int kills = 0; kills < 10; ++kills) {
    UcxCarrierFactory factory;
    CarrierEnd end(factory.Make(Rank(0)));
    OtherRank other;
    ASSERT_TRUE(end.Start({{Rank(1), other.Address()}}).ok());
    other.Tell(end.carrier->address());
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
TEST(UcxCarrier, AFrameThatIsNotTakenInTimeCostsThePeer) {
  auto carrier = UcxCarrier::Create({.transfer_timeout_nanos = 1'000'000'000});
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  CarrierEnd end(*std::move(carrier));
  OtherRank other;
  ASSERT_TRUE(end.Start({{Rank(1), other.Address()}}).ok());
  other.Tell(end.carrier->address());
  ASSERT_TRUE(end.AwaitArrivals(3));
  other.Freeze();
  end.carrier->Send(Rank(1), {.header = "x", .payload = {OwnedPiece(Pattern(int64_t{16} << 20, 1))}});
  ASSERT_TRUE(end.AwaitLosses(1));
  end.carrier->Close();
  absl::MutexLock lock(&end.mu);
  EXPECT_EQ(end.lost[0].second.message(), "it has not taken a frame in time");
}

}  // namespace
}  // namespace penstock::testing
