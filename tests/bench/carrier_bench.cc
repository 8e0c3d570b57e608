// What a carrier between ranks moves over loopback: UCX, or gRPC in plaintext. For each size of a frame the megabytes a
// second with four under way, and the time of 1 KiB one way.
//
//   carrier_bench [--carrier ucx|grpc] [--processes 1|2] [--bytes 65536,1048576] [--moved 2048]
//   carrier_bench --environment
//
// Two processes have a core each, as two ranks. --environment prints what this program sets for UCX, as the daemon does:
// another program that is compared with it needs the same (carrier_cost.py).

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "engine/ucx/ucx_carrier.h"
#include "engine/ucx/ucx_environment.h"
#include "server/peer/grpc_carrier.h"

namespace penstock {
namespace {

constexpr int kUnderWay = 4;
constexpr int64_t kLargest = int64_t{64} << 20;
constexpr int64_t kMostFrames = 20'000;
constexpr int kPings = 2000;
constexpr int64_t kPingBytes = 1024;
// What a frame begins with: whether its receiver answers with an empty one, once it has all that came.
constexpr char kPlain = 'p';
constexpr char kLast = 'l';
constexpr char kPing = 'g';  // answered with as many bytes

struct Options {
  std::string carrier = "ucx";
  int processes = 1;
  std::vector<int64_t> bytes;
  int64_t moved = 2048;
  bool environment = false;
};

std::unique_ptr<Carrier> MakeCarrier(const Options& options, TimerQueue* timers, Rank self) {
  if (options.carrier == "ucx") {
    auto carrier = UcxCarrier::Create({});
    PENSTOCK_CHECK(carrier.ok());
    return *std::move(carrier);
  }
  auto carrier = GrpcCarrier::Create({.self = self, .key = std::string(16, 'k'), .timers = timers});
  PENSTOCK_CHECK(carrier.ok());
  return *std::move(carrier);
}

// Of huge pages where the kernel gives them, as ucx_perftest's: what is compared is the carriers, not their memory.
std::shared_ptr<char> HugePages(int64_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  auto* const memory = static_cast<char*>(std::aligned_alloc(kHugePage, bytes));
  PENSTOCK_CHECK(memory != nullptr);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::fill_n(memory, bytes, 'x');
  return {memory, &std::free};
}

// One end: sends frames, counts those that have left and those that came, and answers where it is asked to.
class Side {
 public:
  Side(std::unique_ptr<Carrier> its_carrier, Rank other) : carrier(std::move(its_carrier)), other_(other) {}

  void Start(const std::string& address) {
    PENSTOCK_CHECK(carrier
                       ->Start({{other_, address}},
                               {.on_header = [this](auto header, int64_t bytes) { return Land(header, bytes); },
                                .on_lost = [](Rank, const absl::Status&) {}})
                       .ok());
  }
  void Send(char what, int64_t bytes) {
    const auto left = [this, kept = bytes_](char*) {
      absl::MutexLock lock(&mu_);
      ++left_;
    };
    std::string header(100, 'h');
    header.front() = what;
    carrier->Send(other_, {.header = std::move(header),
                           .payload = {{bytes_.get(), bytes, std::shared_ptr<char>(bytes_.get(), left)}}});
  }
  void AwaitLeft(int64_t frames) { Await(&left_, frames); }
  void AwaitCame(int64_t frames) { Await(&came_, frames); }
  int64_t left() {
    absl::MutexLock lock(&mu_);
    return left_;
  }
  int64_t came() {
    absl::MutexLock lock(&mu_);
    return came_;
  }

  const std::unique_ptr<Carrier> carrier;

 private:
  absl::StatusOr<Landing> Land(std::string_view header, int64_t bytes) {
    ++open_;
    if (header.front() != kPlain) asked_ = header.front();
    return Landing{.places = {{bytes_.get(), bytes, bytes_}}, .on_ended = [this, bytes](const absl::Status&) {
                     {
                       absl::MutexLock lock(&mu_);
                       ++came_;
                     }
                     if (--open_ > 0 || asked_ == kPlain) return;
                     Send(kPlain, std::exchange(asked_, kPlain) == kPing ? bytes : 0);
                   }};
  }
  void Await(const int64_t* count, int64_t frames) {
    const auto reached = [&] { return *count >= frames; };
    absl::MutexLock lock(&mu_, absl::Condition(&reached));
  }

  const Rank other_;
  const std::shared_ptr<char> bytes_ = HugePages(kLargest);
  // The carrier's: handlers of an edge run one at a time.
  int open_ = 0;
  char asked_ = kPlain;
  absl::Mutex mu_;
  int64_t left_ = 0;
  int64_t came_ = 0;
};

double Seconds(const std::function<void()>& work) {
  const int64_t begin = RealClock()->NowNanos();
  work();
  return static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
}

double SecondsOf(Side& from, int64_t bytes, int64_t frames) {
  const int64_t left = from.left();
  const int64_t came = from.came();
  return Seconds([&] {
    for (int64_t i = 0; i < frames; ++i) {
      from.AwaitLeft(left + i + 1 - kUnderWay);
      from.Send(i + 1 < frames ? kPlain : kLast, bytes);
    }
    from.AwaitCame(came + 1);
  });
}

void Measure(Side& from, const Options& options) {
  for (const int64_t bytes : options.bytes) {
    const int64_t frames = std::clamp<int64_t>((options.moved << 20) / bytes, 1, kMostFrames);
    SecondsOf(from, bytes, std::min<int64_t>(frames, 5));  // warms up
    const double seconds = SecondsOf(from, bytes, frames);
    std::printf("%10ld bytes %8ld frames %8.0f MB/s\n", bytes, frames,
                static_cast<double>(bytes * frames) / seconds / 1e6);
  }
  const int64_t came = from.came();
  const double seconds = Seconds([&] {
    for (int i = 0; i < kPings; ++i) {
      from.Send(kPing, kPingBytes);
      from.AwaitCame(came + i + 1);
    }
  });
  std::printf("1 KiB one way %.1f us\n", seconds / kPings / 2 * 1e6);
}

void RunInOneProcess(const Options& options) {
  TimerQueue timers(RealClock());
  Side a(MakeCarrier(options, &timers, Rank(0)), Rank(1));
  Side b(MakeCarrier(options, &timers, Rank(1)), Rank(0));
  a.Start(b.carrier->address());
  b.Start(a.carrier->address());
  Measure(a, options);
  a.carrier->Close();
  b.carrier->Close();
}

// --- two processes ---

void Write(int pipe, const std::string& text) {
  const size_t size = text.size();
  PENSTOCK_CHECK(write(pipe, &size, sizeof(size)) == sizeof(size));
  PENSTOCK_CHECK(write(pipe, text.data(), size) == static_cast<ssize_t>(size));
}
std::string Read(int pipe) {
  size_t size = 0;
  PENSTOCK_CHECK(read(pipe, &size, sizeof(size)) == sizeof(size));
  std::string text(size, '\0');
  PENSTOCK_CHECK(read(pipe, text.data(), size) == static_cast<ssize_t>(size));
  return text;
}

// Of the rank `self`, which writes to one pipe and reads from the other.
void RunRank(const Options& options, Rank self, int in, int out) {
  const std::vector<int> cores = UsableCores();
  PENSTOCK_CHECK(PinThisThread({cores[self.value() % cores.size()]}).ok());  // and the threads that it starts
  TimerQueue timers(RealClock());
  Side side(MakeCarrier(options, &timers, self), Rank(1 - self.value()));
  Write(out, side.carrier->address());
  side.Start(Read(in));
  Write(out, "started");
  Read(in);
  if (self == Rank(0)) {
    Measure(side, options);
    Write(out, "over");
  } else {
    Read(in);
  }
  side.carrier->Close();
}

void RunInTwoProcesses(const Options& options) {
  int up[2];
  int down[2];
  PENSTOCK_CHECK(pipe(up) == 0 && pipe(down) == 0);
  const pid_t child = fork();
  PENSTOCK_CHECK(child >= 0);
  if (child == 0) {
    RunRank(options, Rank(1), down[0], up[1]);
    std::exit(0);
  }
  RunRank(options, Rank(0), up[0], down[1]);
  int status = 0;
  PENSTOCK_CHECK(waitpid(child, &status, 0) == child && status == 0);
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--carrier", options.carrier)->check(CLI::IsMember({"ucx", "grpc"}));
  app.add_option("--processes", options.processes)->check(CLI::Range(1, 2));
  app.add_option("--bytes", options.bytes, "Of a frame; default: 1 KiB to 64 MiB")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kLargest));
  app.add_option("--moved", options.moved, "MiB for each size")->check(CLI::PositiveNumber);
  app.add_flag("--environment", options.environment, "Print what UCX gets, and end");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("What a carrier between ranks moves");
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  const UcxEnvironmentOptions loopback{.network_interface = "lo"};
  if (options.environment) {
    for (const auto& [name, value] : UcxEnvironment(loopback)) std::printf("%s=%s\n", name.c_str(), value.c_str());
    return 0;
  }
  PrepareUcxEnvironment(loopback);
  if (options.bytes.empty()) {
    for (int64_t bytes = 1024; bytes <= kLargest; bytes *= 4) options.bytes.push_back(bytes);
  }
  (options.processes == 1 ? RunInOneProcess : RunInTwoProcesses)(options);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
