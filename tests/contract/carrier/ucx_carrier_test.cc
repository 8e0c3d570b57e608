#include "engine/ucx/ucx_carrier.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/ucx/ucx_environment.h"
#include "tests/contract/carrier/carrier_contract.h"
#include "tests/contract/carrier/carrier_process_contract.h"
#include "tests/contract/transport/group_transport_contract.h"
#include "tests/contract/transport/transport_contract.h"
#include "tests/support/failing_new.h"

namespace penstock::testing {

const char* const kCarrierRank = PENSTOCK_CARRIER_RANK;

namespace {

bool UcxIsLoaded() { return dlopen("libucs.so.0", RTLD_LAZY | RTLD_NOLOAD) != nullptr; }

// By signal.
std::vector<void (*)(int)> SignalHandlers() {
  std::vector<void (*)(int)> handlers;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action = {};
    sigaction(number, nullptr, &action);
    handlers.push_back(action.sa_handler);
  }
  return handlers;
}

// This process before main(), and thus before any thread.
struct AtStart {
  AtStart() { PrepareUcxEnvironment({.network_interface = "lo"}); }
  const bool ucx_is_loaded = UcxIsLoaded();
  const std::vector<void (*)(int)> handlers = SignalHandlers();
};
const AtStart at_start;

struct UcxCarrierFactory {
  static constexpr const char* kKind = "ucx";
  std::unique_ptr<Carrier> Make(Rank, int64_t send_timeout_nanos = kMinuteNanos) {
    auto carrier = UcxCarrier::Create({.transfer_timeout_nanos = send_timeout_nanos});
    EXPECT_TRUE(carrier.ok()) << carrier.status();
    return *std::move(carrier);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CarrierContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, CarrierProcessContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, GroupTransportContract, UcxCarrierFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxTwoRanks, TransportContract, TwoRanksFactory<UcxCarrierFactory>);

TEST(UcxCarrier, LoadsUcxWithTheFirstAndLeavesSignalsAlone) {
  EXPECT_FALSE(at_start.ucx_is_loaded);
  UcxCarrierFactory().Make(Rank(0));
  EXPECT_TRUE(UcxIsLoaded());
  EXPECT_EQ(SignalHandlers(), at_start.handlers);
}

TEST(UcxCarrier, WithoutItsNetworkIsNotMade) {
  setenv("UCX_NET_DEVICES", "nosuch0", /*overwrite=*/1);
  const auto carrier = UcxCarrier::Create({});
  setenv("UCX_NET_DEVICES", "lo", /*overwrite=*/1);
  EXPECT_EQ(carrier.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(carrier.status()), "LISTEN_FAILED");
  EXPECT_THAT(std::string(carrier.status().message()),
              ::testing::HasSubstr("No such device (UCX_NET_DEVICES=nosuch0)"));
}

// UCX itself would end the process.
TEST(UcxCarrier, AnAddressThatIsNoneIsRefusedByName) {
  const auto other = UcxCarrier::Create({});
  ASSERT_TRUE(other.ok()) << other.status();
  const std::string address = (*other)->address();
  std::string flipped = address;
  flipped.back() ^= 1;
  for (const std::string& none : {std::string(), std::string("*"), std::string(10, '\xff'), address.substr(1),
                                  address.substr(0, address.size() - 1), address + "x", flipped}) {
    const auto carrier = UcxCarrier::Create({});
    ASSERT_TRUE(carrier.ok()) << carrier.status();
    const absl::Status refused = (*carrier)->Start({{Rank(3), none}}, {});
    EXPECT_EQ(ReasonOf(refused), "RANK_LOST") << refused;
    EXPECT_EQ(ValuesOf(refused)["rank"], "3");
    (*carrier)->Close();
  }
}

TEST(UcxCarrier, WithoutDescriptorsIsNotMadeAndIsWhenTheyAreBack) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = eventfd(0, 0);
  const rlimit low = {.rlim_cur = static_cast<rlim_t>(next) + 20, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const absl::Status refused = UcxCarrier::Create({}).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  close(next);
  EXPECT_EQ(ReasonOf(refused), "HOST_MEMORY") << refused;
  EXPECT_TRUE(UcxCarrier::Create({}).ok());
}

// So many of this process have the limit of a carrier that takes a silent peer for lost after a second.
int LimitedConnections() {
  int limited = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    int milliseconds = 0;
    socklen_t length = sizeof(milliseconds);
    const int got = getsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &length);
    if (got == 0 && milliseconds == 1000) ++limited;
  }
  return limited;
}

TEST(UcxCarrier, ConnectionsHaveALimitOfSilence) {
  const auto make = [] { return *UcxCarrier::Create({.silence_nanos = 1'000'000'000}); };
  CarrierEnd a(make()), b(make());
  ASSERT_TRUE(a.Start({{Rank(1), b.carrier->address()}}).ok());
  ASSERT_TRUE(b.Start({{Rank(0), a.carrier->address()}}).ok());
  a.carrier->Send(Rank(1), {.header = "x"});
  ASSERT_TRUE(b.AwaitArrivals(1));
  const absl::Time patience = absl::Now() + absl::Minutes(1);
  while (LimitedConnections() < 2 && absl::Now() < patience) std::this_thread::yield();
  EXPECT_GE(LimitedConnections(), 2) << "the ends of one connection";
}

// It may be a message that somebody waits for, and it has left its sender.
TEST(UcxCarrier, APayloadForWhichThereIsNoMemoryCostsTheEdge) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  UcxCarrierFactory factory;
  CarrierEnd from(factory.Make(Rank(0)));
  const auto to = factory.Make(Rank(1));
  std::string place(int64_t{1} << 20, '\0');
  absl::Notification ended;
  const auto end = [&](const absl::Status& status) {
    EXPECT_TRUE(StopFailingNew());
    EXPECT_EQ(ReasonOf(status), "HOST_MEMORY");
    ended.Notify();
  };
  const auto on_header = [&](std::string_view, int64_t bytes) {
    absl::StatusOr<Landing> landing = Landing{.places = {{place.data(), bytes}}, .on_ended = end};
    FailNewOnce(0);
    return landing;
  };
  ASSERT_TRUE(to->Start({{Rank(0), from.carrier->address()}},
                        {.on_header = on_header, .on_lost = [](Rank, const absl::Status&) {}})
                  .ok());
  ASSERT_TRUE(from.Start({{Rank(1), to->address()}}).ok());
  from.carrier->Send(Rank(1), {.header = "x", .payload = {OwnedPiece(place)}});
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Minutes(1)));
  EXPECT_TRUE(from.AwaitLosses(1));
  to->Close();
}

}  // namespace
}  // namespace penstock::testing
