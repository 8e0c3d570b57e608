// What UCX, or with the argument `grpc` gRPC in plaintext, carries between two carriers of one process, over loopback:
// for each size of a frame the megabytes a second with four under way, and the time of 1 KiB one way. To compare UCX, in
// turns: ucx_perftest -t ucp_am_bw, with the same environment, which this program gives itself as the daemon must.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/ucx/ucx_carrier.h"
#include "engine/ucx/ucx_environment.h"
#include "server/peer/grpc_carrier.h"

namespace penstock {
namespace {

constexpr int kUnderWay = 4;
constexpr int64_t kLargest = int64_t{64} << 20;
constexpr int64_t kBytesPerSize = int64_t{2} << 30;
constexpr int64_t kMostFrames = 20'000;

using MakeCarrier = std::function<std::unique_ptr<Carrier>(Rank self)>;

std::unique_ptr<Carrier> MakeUcx(Rank) {
  auto carrier = UcxCarrier::Create({});
  PENSTOCK_CHECK(carrier.ok());
  return *std::move(carrier);
}

std::unique_ptr<Carrier> MakeGrpc(TimerQueue* timers, Rank self) {
  auto carrier = GrpcCarrier::Create({.self = self, .key = std::string(16, 'k'), .timers = timers});
  PENSTOCK_CHECK(carrier.ok());
  return *std::move(carrier);
}

// Counts the frames that it has received.
class Side {
 public:
  explicit Side(std::unique_ptr<Carrier> its_carrier) : carrier(std::move(its_carrier)) {}

  void Start(Rank other, const std::string& address, std::function<void()> on_frame) {
    on_frame_ = std::move(on_frame);
    PENSTOCK_CHECK(carrier
                       ->Start({{other, address}}, {.on_header = [this](auto, int64_t bytes) { return Land(bytes); },
                                                    .on_lost = [](Rank, const absl::Status&) {}})
                       .ok());
  }
  void Send(Rank to, int64_t bytes) {
    carrier->Send(to, {.header = std::string(100, 'h'), .payload = {{bytes_->data(), bytes, bytes_}}});
  }
  void Await(int64_t frames) {
    const auto there = [&] { return frames_ >= frames; };
    absl::MutexLock lock(&mu_, absl::Condition(&there));
  }

  const std::unique_ptr<Carrier> carrier;

 private:
  absl::StatusOr<Landing> Land(int64_t bytes) {
    return Landing{.places = {{bytes_->data(), bytes, bytes_}}, .on_ended = [this](const absl::Status&) {
                     on_frame_();
                     absl::MutexLock lock(&mu_);
                     ++frames_;
                   }};
  }

  const std::shared_ptr<std::string> bytes_ = std::make_shared<std::string>(kLargest, 'x');
  std::function<void()> on_frame_;
  absl::Mutex mu_;
  int64_t frames_ = 0;
};

double Seconds(const std::function<void()>& work) {
  const int64_t begin = RealClock()->NowNanos();
  work();
  return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
}

void Run(const MakeCarrier& make) {
  Side a(make(Rank(0)));
  Side b(make(Rank(1)));
  std::atomic<bool> echo = false;
  a.Start(Rank(1), b.carrier->address(), [] {});
  b.Start(Rank(0), a.carrier->address(), [&] {
    if (echo) b.Send(Rank(0), 1024);
  });
  int64_t sent = 0;
  for (int64_t bytes = 1024; bytes <= kLargest; bytes *= 4) {
    const int64_t frames = std::min(kMostFrames, kBytesPerSize / bytes);
    const double seconds = Seconds([&] {
      for (int64_t i = 0; i < frames; ++i) {
        if (i >= kUnderWay) b.Await(sent - kUnderWay + 1);
        a.Send(Rank(1), bytes);
        ++sent;
      }
      b.Await(sent);
    });
    std::printf("%10ld bytes %8ld frames %8.0f MB/s\n", bytes, frames,
                static_cast<double>(bytes * frames) / seconds / 1e6);
  }
  b.Send(Rank(0), 0);
  a.Await(1);
  echo = true;  // nothing is under way now
  constexpr int kPings = 2000;
  const double seconds = Seconds([&] {
    for (int i = 0; i < kPings; ++i) {
      a.Send(Rank(1), 1024);
      a.Await(i + 2);
    }
  });
  std::printf("1 KiB one way %.1f us\n", seconds / kPings / 2 * 1e6);
  a.carrier->Close();
  b.carrier->Close();
}

}  // namespace
}  // namespace penstock

int main(int count, char** arguments) {
  using namespace penstock;
  if (count == 2 && std::string_view(arguments[1]) == "grpc") {
    TimerQueue timers(RealClock());
    Run([&](Rank self) { return MakeGrpc(&timers, self); });
    return 0;
  }
  if (std::getenv("UCX_TLS") == nullptr) {
    for (const auto& [name, value] : UcxEnvironment({.network_interface = "lo"})) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    execv("/proc/self/exe", arguments);
  }
  Run(MakeUcx);
}
