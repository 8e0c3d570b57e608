// Rank 1 in a process of its own, over the carrier that the argument names: writes its address as hex, reads rank 0's,
// then sends 16 MiB to it without end, until it is killed.

#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "engine/ucx/ucx_carrier.h"
#include "engine/ucx/ucx_environment.h"
#include "tests/contract/carrier/grpc_carrier_factory.h"

namespace penstock::testing {
namespace {

constexpr int64_t kBytes = int64_t{16} << 20;
constexpr int kUnderWay = 4;

int SendWithoutEnd(Carrier& carrier) {
  std::cout << absl::BytesToHexString(carrier.address()) << std::endl;
  std::string leader;
  std::cin >> leader;
  absl::Mutex mu;
  int under_way = 0;
  const auto room = [&] { return under_way < kUnderWay; };
  const absl::Status started =
      carrier.Start({{Rank(0), absl::HexStringToBytes(leader)}},
                    {.on_header = [](auto, auto) { return absl::StatusOr<Landing>(Landing{}); },
                     .on_lost = [](Rank, const absl::Status&) {}});
  if (!started.ok()) return 1;
  while (true) {
    {
      absl::MutexLock lock(&mu, absl::Condition(&room));
      ++under_way;
    }
    // Its owner goes when the frame has left.
    std::shared_ptr<std::string> bytes(new std::string(kBytes, 'x'), [&](std::string* done) {
      delete done;
      absl::MutexLock lock(&mu);
      --under_way;
    });
    carrier.Send(Rank(0), {.header = "x", .payload = {{.data = bytes->data(), .bytes = kBytes, .owner = bytes}}});
  }
}

int Run(std::string_view kind) {
  if (kind == GrpcCarrierFactory::kKind) {
    GrpcCarrierFactory factory;
    return SendWithoutEnd(*factory.Make(Rank(1)));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {  // it prepares all by itself
    if (std::string_view(*variable).starts_with("UCX_")) return 3;
  }
  PrepareUcxEnvironment({.network_interface = "lo"});
  auto carrier = UcxCarrier::Create({});
  return carrier.ok() ? SendWithoutEnd(**carrier) : 1;
}

}  // namespace
}  // namespace penstock::testing

int main(int count, char** arguments) { return count == 2 ? penstock::testing::Run(arguments[1]) : 2; }
