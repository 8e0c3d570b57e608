#include "server/rank_options.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/device/cpu_capability.h"
#include "engine/ucx/ucx_environment.h"
#include "server/ranks/peer_credentials.h"

namespace penstock {
namespace {

// HOST of HOST:PORT; without the brackets of an IPv6 address.
std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

bool IsLoopback(const std::string& host) {
  return absl::StartsWith(host, "127.") || host == "localhost" || host == "::1";
}

// What the system calls this host; empty where it does not say.
std::string NameOfThisHost() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "";
}

PeerFiles FilesOf(const DaemonOptions& options) {
  return {.certificate = options.tls_cert, .key = options.tls_key, .authorities = options.tls_client_ca};
}

// The numbers of the address of this host from which another one is reached: the system says so of a socket that sends
// nothing.
absl::StatusOr<std::string> OwnHostTowards(const std::string& leader) {
  const auto invalid = [&leader](const std::string& problem) { return InvalidField("--leader", problem, leader); };
  const addrinfo hints = {.ai_flags = AI_ADDRCONFIG, .ai_socktype = SOCK_DGRAM};
  addrinfo* found = nullptr;
  const std::string port = leader.substr(leader.rfind(':') + 1);
  const int failed = getaddrinfo(HostOf(leader).c_str(), port.c_str(), &hints, &found);
  if (failed != 0) return invalid(absl::StrCat("must be an address that resolves (", gai_strerror(failed), ")"));
  const absl::Cleanup release = [found] { freeaddrinfo(found); };
  const int socket = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return invalid("can't be reached: no descriptor is left");
  const absl::Cleanup end = [socket] { close(socket); };
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  char host[NI_MAXHOST];
  if (connect(socket, found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return invalid("must be an address that this host has a way to");
  }
  return own.ss_family == AF_INET6 ? absl::StrCat("[", host, "]") : std::string(host);
}

}  // namespace

RankDescription DescribeRank(const DaemonOptions& options, const std::vector<Device>& devices) {
  RankDescription self = {.build = absl::StrCat(PENSTOCK_VERSION, " with LibTorch ", PENSTOCK_TORCH_VERSION),
                          .rank = options.ranks.rank,
                          .world_size = options.ranks.world_size,
                          .instance = RandomKey(),
                          .instructions = CpuCapability(),
                          .carrier = options.peer_transport == PeerTransport::kUcx ? "ucx" : "grpc",
                          .host = NameOfThisHost()};
  for (const Device& device : devices) {
    self.devices.push_back({.name = device.name, .memory_bytes = device.memory_limit_bytes});
  }
  return self;
}

GroupCarriers::Options CarriersOf(const DaemonOptions& options, TimerQueue* timers, Clock* clock) {
  GroupCarriers::Options carriers = {.self = options.ranks.rank, .transport = options.peer_transport};
  carriers.host = [leader = options.ranks.leader] { return OwnHostTowards(leader); };
  carriers.credentials = FilesOf(options);
  carriers.peer_timeout = options.peer_timeout;
  carriers.timers = timers;
  carriers.clock = clock;
  return carriers;
}

LeaderLink::Options LinkOf(const DaemonOptions& options, const std::vector<Device>& devices, Clock* clock) {
  LeaderLink::Options link;
  link.self = DescribeRank(options, devices);
  link.leader = options.ranks.leader;
  // Files that can't be read for a moment do not end a link.
  link.credentials = [files = FilesOf(options), last = std::shared_ptr<grpc::ChannelCredentials>()]() mutable {
    auto read = PeerChannelCredentials(files);
    if (read.ok()) {
      last = *std::move(read);
    } else {
      LogWarning("the credentials of this rank can't be read", {{"problem", std::string(read.status().message())}});
    }
    return last;
  };
  link.peer_timeout = options.peer_timeout;
  link.clock = clock;
  return link;
}

void PrepareForRanks(const DaemonOptions& options) {
  if (options.ranks.world_size == 1 || options.peer_transport != PeerTransport::kUcx) return;
  PrepareUcxEnvironment({.network_interface = LeaderIsOnThisHost(options) ? "lo" : ""});
}

bool LeaderIsOnThisHost(const DaemonOptions& options) { return IsLoopback(HostOf(options.ranks.leader)); }

absl::Status CheckRankOptions(const DaemonOptions& options) {
  if (options.ranks.world_size == 1) return absl::OkStatus();
  if (!options.tls_cert.empty()) {
    if (!options.tls_client_ca.empty()) return CheckPeerFiles(FilesOf(options), absl::Now());
    return InvalidField("--tls-client-ca", "is required with --tls-cert where there are several ranks", "nothing");
  }
  constexpr char kRule[] = "must be on loopback, or have --tls-cert, or --insecure: ranks believe each other";
  if (options.insecure) return absl::OkStatus();
  if (!LeaderIsOnThisHost(options)) return InvalidField("--leader", kRule, options.ranks.leader);
  if (options.peer_listen.empty() || IsLoopback(HostOf(options.peer_listen))) return absl::OkStatus();
  return InvalidField("--peer-listen", kRule, options.peer_listen);
}

}  // namespace penstock
