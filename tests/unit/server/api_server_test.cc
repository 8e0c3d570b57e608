#include "server/api_server.h"

#include <dlfcn.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/state_lock.h"
#include "engine/observe/metrics_registry.h"
#include "server/identity/authenticator.h"
#include "server/liveness.h"
#include "server/rpc/services/health_service.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temporary_folder.h"

namespace {

// The modes that Unix sockets had when they were bound, before anything else could change them.
std::vector<mode_t>& ModesAtBind() {
  static auto* modes = new std::vector<mode_t>;
  return *modes;
}

}  // namespace

// Stands in front of the C library's: gRPC calls it too.
extern "C" int bind(int descriptor, const sockaddr* address, socklen_t length) {
  using Bind = int (*)(int, const sockaddr*, socklen_t);
  static const Bind next = reinterpret_cast<Bind>(dlsym(RTLD_NEXT, "bind"));
  const int result = next(descriptor, address, length);
  struct stat status;
  if (result == 0 && address->sa_family == AF_UNIX &&
      ::stat(reinterpret_cast<const sockaddr_un*>(address)->sun_path, &status) == 0) {
    ModesAtBind().push_back(status.st_mode & 0777);
  }
  return result;
}

namespace penstock::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class ApiServerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ApiServer>> Listen(const std::string& address, bool insecure = false) {
    return ApiServer::Create(
        {.listen = address, .insecure = insecure, .max_message_bytes = 4 << 20, .memory_bytes = 256 << 20}, {&health_},
        &registry_.server(), &clock_);
  }
  grpc::Status Check(const std::string& address, grpc_compression_algorithm compression = GRPC_COMPRESS_NONE) {
    auto stub = Health::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_compression_algorithm(compression);
    HealthCheckRequest request;
    request.set_service(std::string(4'000, 'x'));  // large enough to be compressed
    HealthCheckResponse response;
    return stub->Check(&context, request, &response);
  }

  TemporaryFolder folder_;
  FakeClock clock_;
  MetricsRegistry registry_{&clock_};
  TimerQueue timers_{&clock_};
  Authenticator authenticator_{Identity(), &clock_};
  HealthServiceImpl health_{&authenticator_, &timers_, &clock_};
};

TEST_F(ApiServerTest, FindsAFreePortAndTellsIt) {
  auto server = Listen("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_NE((*server)->address(), "127.0.0.1:0");
  EXPECT_EQ(Check((*server)->address()).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ApiServerTest, InflatesNothing) {
  auto server = Listen("127.0.0.1:0");
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(Check((*server)->address(), GRPC_COMPRESS_GZIP).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Check((*server)->address(), GRPC_COMPRESS_DEFLATE).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Check((*server)->address()).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ApiServerTest, ASocketIsItsOwnersOnly) {
  const std::string path = folder_.path() + "/api";
  auto server = Listen("unix:" + path);
  ASSERT_TRUE(server.ok()) << server.status();
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(Check("unix:" + path).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ApiServerTest, ASocketIsItsOwnersOnlyFromItsFirstMoment) {
  ModesAtBind().clear();
  const mode_t mask = ::umask(022);
  EXPECT_TRUE(Listen("unix:" + folder_.path() + "/api").ok());
  EXPECT_EQ(::umask(mask), 022u);  // the process's mask is as it was
  EXPECT_EQ(ModesAtBind(), std::vector<mode_t>{0600});
}

TEST_F(ApiServerTest, PlaintextStaysOnThisHostUnlessToldOtherwise) {
  const auto refused = Listen("0.0.0.0:0");
  EXPECT_EQ(ValuesOf(refused.status())["field"], "--listen");
  EXPECT_TRUE(Listen("0.0.0.0:0", true).ok());
}

TEST_F(ApiServerTest, ATakenPortIsNamed) {
  auto first = Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = Listen((*first)->address());
  EXPECT_EQ(ReasonOf(second.status()), "LISTEN_FAILED");
  EXPECT_EQ(ValuesOf(second.status())["value"], (*first)->address());
  EXPECT_EQ(second.status().message(),
            "--listen: can't listen there: Address already in use, got " + (*first)->address());
}

TEST(StateLock, KeepsASecondDaemonAway) {
  TemporaryFolder folder;
  auto first = StateLock::Take(folder.path());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ReasonOf(StateLock::Take(folder.path()).status()), "STATE_IN_USE");
  first->reset();
  EXPECT_TRUE(StateLock::Take(folder.path()).ok());
  EXPECT_FALSE(StateLock::Take(folder.path() + "/missing").ok());
}

TEST(Liveness, APipelineThatStandsStillIsToldAndSoIsItsProgress) {
  FakeClock clock;
  MetricsRegistry registry(&clock);
  TimerQueue timers(&clock);
  auto pipeline = registry.AddPipeline("gpt", {LaneDescription{.lane = 0}, LaneDescription{.lane = 1}});
  std::vector<bool> told;
  LivenessWatch watch(&registry, &timers, {}, [&](bool live) { told.push_back(live); });
  const auto pass = [&](absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(5)) {
      clock.Advance(absl::Seconds(5));
      timers.SettleForTest();
    }
  };
  pass(absl::Minutes(5));  // nothing to do is no stall
  EXPECT_TRUE(told.empty());
  pipeline->lane(0).last_progress.Mark(&clock);
  pipeline->runs_active[BatchMode::kTrain].Set(1);
  pass(absl::Seconds(60));
  EXPECT_TRUE(told.empty());
  pass(absl::Seconds(5));
  EXPECT_EQ(told, std::vector<bool>{false});
  EXPECT_EQ(watch.Problem(), "gpt stands still");
  pipeline->lane(1).last_progress.Mark(&clock);
  pass(absl::Seconds(5));
  EXPECT_EQ(told, (std::vector<bool>{false, true}));
}

TEST(Liveness, ALostDeviceIsToldForGood) {
  FakeClock clock;
  MetricsRegistry registry(&clock);
  TimerQueue timers(&clock);
  std::string lost;
  std::vector<bool> told;
  LivenessWatch watch(&registry, &timers, {.lost_device = [&lost] { return lost; }},
                      [&](bool live) { told.push_back(live); });
  const auto look = [&] {
    clock.Advance(absl::Seconds(5));
    timers.SettleForTest();
  };
  look();
  EXPECT_EQ(watch.Problem(), "");
  lost = "cuda:0";
  look();
  look();
  EXPECT_EQ(told, std::vector<bool>{false});
  EXPECT_EQ(watch.Problem(), "device cuda:0 is lost");
}

TEST(Liveness, ALookThatThrowsDoesNotEndTheWatch) {
  FakeClock clock;
  MetricsRegistry registry(&clock);
  TimerQueue timers(&clock);
  int looks = 0;
  LivenessWatch watch(&registry, &timers, {.lost_device = [&looks]() -> std::string {
    if (++looks == 1) throw std::runtime_error("broken");
    return "cuda:0";
  }},
                      [](bool) {});
  for (int i = 0; i < 2; ++i) {
    clock.Advance(absl::Seconds(5));
    timers.SettleForTest();
  }
  EXPECT_EQ(looks, 2);
}

}  // namespace
}  // namespace penstock::testing
